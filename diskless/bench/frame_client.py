"""A client of a simulation: it shakes hands and sends frames, by hand and not by a socket."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from diskless.bench.made_up_time import Watch
from diskless.checksum import file_checksum
from diskless.errors import error_from_wire
from diskless.gateway.connection import Connection
from diskless.gateway.lobby import DOOR
from diskless.gateway.server import Gateway
from diskless.identity.claims import Credential
from diskless.identity.handshake import Caller, Challenge
from diskless.protocol import messages as m
from diskless.protocol.frames import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    VERSION,
    pack_head,
    unpack_header,
)
from diskless.protocol.messages import Kind

PREFETCH_BYTES = 64 * 1024


class Tally:
    """Messages of the leader, sent and got, by kind, and how many bytes they have."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def note(self, kind: str, size: int) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += size


class FrameClient:
    """A client with one connection to an agent's gateway."""

    def __init__(
        self, number: int, gateway: Gateway, credential: Credential, watch: Watch, tally: Tally
    ) -> None:
        """Its own work is not counted by the watch; the messages of both sides are."""
        self.number = number
        self._credential = credential
        self._watch = watch
        self._tally = tally
        self._connection = Connection(gateway, number)
        self._connection.connection_made(_Transport(self._take))
        self._request = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._session = self._sequence = 0

    async def arrive(self) -> None:
        """Both sides prove themselves, and a session is opened."""
        with self._watch.others():
            caller = Caller(self._credential, door=DOOR)
            knock = caller.knock()
        told = await self.ask(Kind.HELLO, m.Hello(knock.claims, knock.nonce, "simulated"))
        with self._watch.others():
            challenged = msgspec.json.decode(told, type=m.Challenged)
            proof = caller.answer(Challenge(challenged.slot, challenged.nonce, challenged.proof))
            assert proof is not None
        await self.ask(Kind.PROVE, m.Prove(proof.proof))
        opened = await self.ask(Kind.SESSION, m.OpenSession())
        self._session = msgspec.json.decode(opened, type=m.Session).session

    async def put(self, data: bytes) -> None:
        with self._watch.others():
            self._sequence += 1
            file = m.NewFile(self.path, len(data), f"{file_checksum(data):016x}")
            put = m.Put(
                session=self._session, sequence=self._sequence, files=[file], overwrite=True
            )
        await self.ask(Kind.PUT, put, data)

    async def open(self) -> None:
        await self.ask(Kind.OPEN, m.Open(self.path, prefetch=PREFETCH_BYTES))

    @property
    def path(self) -> str:
        return f"/clients/{self.number % 100}/{self.number}"

    async def ask(self, kind: Kind, meta: msgspec.Struct, payload: bytes = b"") -> bytes:
        """The meta of the reply. Raises what it was refused with."""
        with self._watch.others():
            self._request += 1
            parts = (payload,) if payload else ()
            head = pack_head(kind, self._request, m.encode(meta), parts, version=VERSION)
            frame = head + payload
            reply = self._waiting[self._request] = asyncio.get_running_loop().create_future()
        self._tally.note("clients", len(frame))
        into = self._connection.get_buffer(-1)
        into[: len(frame)] = frame
        self._connection.buffer_updated(len(frame))
        return await reply

    def _take(self, data: bytes) -> None:
        self._tally.note("clients", len(data))
        with self._watch.others():
            header = unpack_header(data)
            at = HEADER_BYTES + CHECKSUM_BYTES
            meta = data[at : at + header.meta_bytes]
            reply = self._waiting.pop(header.request)
            if header.kind == Kind.DONE:
                reply.set_result(meta)
            else:
                refusal = msgspec.json.decode(meta, type=m.Refusal)
                reply.set_exception(error_from_wire(refusal.reason, refusal.message))


class _Transport:
    """What a connection writes to: all is taken at once."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def write(self, data: bytes) -> None:
        self._take(data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self._take(b"".join(parts))

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
