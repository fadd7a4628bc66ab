"""A cluster of gateways on real sockets whose agents share one dict of files.

The gateways are the real ones and run on one event loop in a thread; behind them is the
simplest backend that keeps the promises of docs/frames.md: an answers table, uploads
that only their own agent remembers, stripes that all agents can read. Tests plant
faults: what an agent does before or after it executes a request of some kind.
"""

import asyncio
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct

from diskless.agent.memory import Memory
from diskless.checksum import file_checksum
from diskless.client.descriptor import Descriptor
from diskless.config import MIB, Tuning
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    CorruptData,
    DisklessError,
    NotFound,
    SessionExpired,
    UploadLost,
)
from diskless.gateway.backend import Answer, Backend
from diskless.gateway.server import Gateway
from diskless.gateway.visitor import Visitor
from diskless.identity.certificates import Certificates, Pair, any_server_name, issue
from diskless.identity.claims import Credential, Keyring
from diskless.identity.handshake import Caller, Challenge, Doorkeeper
from diskless.model import Extent, Place, Stripe
from diskless.protocol import messages as m
from diskless.protocol.frames import HEADER_BYTES, Header, pack_header, unpack_header
from diskless.protocol.messages import Kind

CLUSTER = "cluster-under-test"
KEYRING = Keyring(cluster=CLUSTER, root=bytes(range(32)))
SECRET = KEYRING.hex()
ADMIN = KEYRING.admin()
WAIT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s in vain until {what}"
        time.sleep(0.002)


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


class MortalGateway(Gateway):
    async def die(self) -> None:
        """As a killed process does: no last words on any connection."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()
        await self.stop()


async def start_gateway(
    backend: Backend, path: Path, *, slot: int = 0, **options: Any
) -> MortalGateway:
    usual = {
        "tuning": Tuning(),
        "memory": Memory(512 * MIB),
        "doorkeeper": Doorkeeper(KEYRING, slot=slot),
    }
    gateway = MortalGateway(backend, **(usual | options))
    await gateway.start(str(path), "127.0.0.1")
    return gateway


class RawClient:
    """A socket and the frames on it, with no politeness of its own.

    Given a credential it shakes hands and leaves the welcome to be received.
    """

    def __init__(
        self,
        path: str = "",
        *,
        port: int = 0,
        credential: Credential | None = ADMIN,
        tls: ssl.SSLContext | None = None,
        source: str = "",
    ) -> None:
        """By TCP it comes from the address `source`, if there is one."""
        self.socket = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.socket.settimeout(WAIT_S)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(path or ("127.0.0.1", port))
        if tls is not None:
            name = any_server_name(CLUSTER)
            self.socket = tls.wrap_socket(self.socket, server_hostname=name)
        if credential is not None:
            self.prove(credential)

    def knock(self, credential: Credential) -> Caller:
        """Says hello, and gives what the answer must be told to."""
        caller = Caller(credential, door="gateway")
        knock = caller.knock()
        self.send(Kind.HELLO, m.Hello(knock.claims, knock.nonce))
        return caller

    def challenge(self) -> Challenge:
        header, meta, _ = self.receive()
        assert header.kind == Kind.DONE, meta
        told = m.msgspec.json.decode(meta, type=m.Challenged)
        return Challenge(told.slot, told.nonce, told.proof)

    def prove(self, credential: Credential) -> None:
        proof = self.knock(credential).answer(self.challenge())
        assert proof is not None, "the agent did not prove itself"
        self.send(Kind.PROVE, m.Prove(proof.proof))

    def send(
        self,
        kind: int,
        meta: Struct | bytes,
        payload: bytes = b"",
        request: int = 1,
        within: int = 0,
    ) -> None:
        data = meta if isinstance(meta, bytes) else m.encode(meta)
        header = pack_header(
            kind, request, leader=within, meta_bytes=len(data), payload_bytes=len(payload)
        )
        self.socket.sendall(header + data + payload)

    def receive(self) -> tuple[Header, bytes, bytes]:
        header = unpack_header(self._exactly(HEADER_BYTES))
        return header, self._exactly(header.meta_bytes), self._exactly(header.payload_bytes)

    def greeted(self) -> "RawClient":
        assert self.receive()[0].kind == Kind.DONE
        return self

    def refusal(self) -> m.Refusal:
        header, meta, _ = self.receive()
        assert header.kind == Kind.REFUSED
        return m.msgspec.json.decode(meta, type=m.Refusal)

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(min(count - len(parts), MIB))
            if not part:
                raise ConnectionError("closed")
            parts += part
        return bytes(parts)


@dataclass
class Fault:
    """What happens, once, to a request of this kind: after `skip` others of it."""

    kind: Kind
    before: Callable[["FakeAgent"], Awaitable[None]] | None = None
    after: Callable[["FakeAgent"], Awaitable[None]] | None = None
    skip: int = 0


@dataclass
class _File:
    status: m.Status
    inline: bytes | None
    extents: list[Extent]


@dataclass
class State:
    """What the agents share."""

    files: dict[str, _File] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {"/"})
    stripes: dict[str, bytes] = field(default_factory=dict)
    answers: dict[tuple[int, int], Struct | DisklessError] = field(default_factory=dict)
    sessions: set[int] = field(default_factory=set)
    executed: list[tuple[Kind, int]] = field(default_factory=list)
    """Mutations that really ran, with the slot that ran them."""
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[Kind, int]] = field(default_factory=list)
    extents_read: list[int] = field(default_factory=list)
    """How many extents each `read` asked for."""
    leader: int | None = 0
    roster_version: int = 1
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    peers: dict[int, m.Peer] = field(default_factory=dict)
    forgets_bytes: bool = False

    def kinds(self, kind: Kind) -> list[int]:
        """The slots that were asked for this, in order."""
        return [slot for asked, slot in self.asked if asked is kind]


class _Upload:
    def __init__(self, sealed: list[Stripe]) -> None:
        self.sealed = sealed
        self.reported = len(sealed)
        self.sealed_bytes = sum(stripe.payload_bytes for stripe in sealed)
        self.open = bytearray()

    @property
    def received(self) -> int:
        return self.sealed_bytes + len(self.open)


class FakeAgent:
    """One agent's backend."""

    stripe_bytes = MIB

    def __init__(self, cluster: "FakeCluster", slot: int) -> None:
        self.cluster = cluster
        self.state = cluster.state
        self.slot = slot
        self.uploads: dict[int, _Upload] = {}
        self.gone: list[int] = []

    def leader(self) -> int | None:
        return self.state.leader

    def hindrance(self) -> DisklessError | None:
        return None

    def roster_version(self) -> int:
        return self.state.roster_version

    def welcome(self) -> m.Welcome:
        return m.Welcome(self.roster().agents)

    def roster(self) -> m.Roster:
        return m.Roster([self.state.peers[slot] for slot in sorted(self.state.peers)])

    def disconnected(self, connection: int) -> None:
        self.gone.append(connection)

    async def handle(
        self, visitor: Visitor, kind: Kind, meta: Any, payload: bytes | memoryview
    ) -> Answer:
        self.state.asked.append((kind, self.slot))
        fault = self._take_fault(kind)
        if fault and fault.before:
            await fault.before(self)
        answer = self._answer(kind, meta, payload)
        if fault and fault.after:
            await fault.after(self)
        return answer

    def _take_fault(self, kind: Kind) -> Fault | None:
        for fault in self.state.faults:
            if fault.kind is kind:
                if fault.skip:
                    fault.skip -= 1
                    return None
                self.state.faults.remove(fault)
                return fault
        return None

    def _answer(self, kind: Kind, meta: Any, payload: bytes | memoryview) -> Answer:
        if not hasattr(meta, "session"):
            return getattr(self, f"_{kind.name.lower()}")(meta, payload)
        key = (meta.session, meta.sequence)
        if meta.session not in self.state.sessions:
            raise SessionExpired(f"session {meta.session} is not known")
        if key not in self.state.answers:
            self.state.executed.append((kind, self.slot))
            try:
                answer, _ = getattr(self, f"_{kind.name.lower()}")(meta, payload)
            except UploadLost:
                raise  # Nothing was ordered, so there is no answer to keep.
            except DisklessError as error:
                answer = error
            self.state.answers[key] = answer
        answer = self.state.answers[key]
        if isinstance(answer, DisklessError):
            raise answer
        return answer, ()

    def _session(self, meta: m.Empty, payload: Any) -> Answer:
        session = next(self.state.numbers)
        self.state.sessions.add(session)
        return m.Session(session), ()

    # Writing.

    def _put(self, meta: m.Put, payload: bytes | memoryview) -> Answer:
        data = bytes(payload)
        if len(data) <= 64 * 1024:
            return self._publish(meta, data, None)
        stripe = self._store(data)
        return self._publish(meta, data, [Extent(stripe.id, 0, len(data))])

    def _write(self, meta: m.Write, payload: bytes | memoryview) -> Answer:
        upload = self._find_upload(meta.upload, meta.offset, meta.resume)
        upload.open += payload
        while len(upload.open) >= self.stripe_bytes:
            self._seal(upload, self.stripe_bytes)
        start = sum(stripe.payload_bytes for stripe in upload.sealed[: upload.reported])
        fresh = upload.sealed[upload.reported :]
        upload.reported = len(upload.sealed)
        return m.Written(upload.received, start, fresh), ()

    def _commit(self, meta: m.Commit, payload: bytes | memoryview) -> Answer:
        upload = self._find_upload(meta.upload, meta.offset, meta.resume)
        upload.open += payload
        if upload.open:
            self._seal(upload, len(upload.open))
        data = b"".join(self.state.stripes[stripe.id] for stripe in upload.sealed)
        extents = [Extent(stripe.id, 0, stripe.payload_bytes) for stripe in upload.sealed]
        return self._publish(meta, data, extents)

    def _abort(self, meta: m.Abort, payload: Any) -> Answer:
        self.uploads.pop(meta.upload, None)
        return m.Empty(), ()

    def _find_upload(self, number: int, offset: int, resume: list[Stripe]) -> _Upload:
        upload = self.uploads.get(number)
        if upload is None:
            upload = _Upload(list(resume))
            if upload.received != offset or any(s.id not in self.state.stripes for s in resume):
                raise UploadLost(f"upload {number} is not known here")
            self.uploads[number] = upload
        if upload.received != offset:
            raise BadRequest(f"upload {number} is at {upload.received}, not {offset}")
        return upload

    def _seal(self, upload: _Upload, count: int) -> None:
        stripe = self._store(bytes(upload.open[:count]))
        del upload.open[:count]
        upload.sealed.append(stripe)
        upload.sealed_bytes += count

    def _store(self, data: bytes) -> Stripe:
        name = f"{self.slot}.1.{next(self.state.numbers)}"
        self.state.stripes[name] = b"" if self.state.forgets_bytes else data
        return Stripe(name, 4, 2, len(data), (Place(self.slot, 1),))

    def _publish(self, meta: m.Put, data: bytes, extents: list[Extent] | None) -> Answer:
        if not meta.overwrite:
            for file in meta.files:
                if file.path in self.state.files:
                    raise AlreadyExists(f"{file.path} exists")
        start, made = 0, []
        for file in meta.files:
            made.append(self._make(file, start, data, extents))
            start += file.size
        for one in made:
            self.state.files[one.status.path] = one
        return m.Committed([one.status for one in made]), ()

    def _make(
        self, file: m.NewFile, start: int, data: bytes, extents: list[Extent] | None
    ) -> _File:
        content = data[start : start + file.size]
        number = next(self.state.numbers)
        if not self.state.forgets_bytes and file.checksum != f"{file_checksum(content):016x}":
            raise CorruptData(f"{file.path} came damaged")
        status = m.Status(file.path, False, file.size, 1, number, file.checksum)
        if extents is None:
            return _File(status, content, [])
        return _File(status, None, _cut(extents, start, file.size))

    # Reading.

    def _find(self, path: str) -> _File:
        if path not in self.state.files:
            raise NotFound(f"{path} does not exist")
        return self.state.files[path]

    def _open(self, meta: m.Open, payload: Any) -> Answer:
        file = self._find(meta.path)
        if file.inline is not None:
            return m.Opened(file.status, []), [file.inline]
        first = self._bytes(_cut(file.extents, 0, min(meta.prefetch, file.status.size)))
        return m.Opened(file.status, file.extents), [first]

    def _read(self, meta: m.Read, payload: Any) -> Answer:
        self.state.extents_read.append(len(meta.extents))
        return m.Empty(), [self._bytes(meta.extents)]

    def _bytes(self, extents: list[Extent]) -> bytes:
        for extent in extents:
            if extent.stripe not in self.state.stripes:
                raise NotFound(f"stripe {extent.stripe} was freed")
        return b"".join(
            self.state.stripes[e.stripe][e.offset : e.offset + e.length] for e in extents
        )

    def _stat(self, meta: m.Stat, payload: Any) -> Answer:
        return self._find(meta.path).status, ()

    def _list(self, meta: m.List, payload: Any) -> Answer:
        prefix = meta.path.rstrip("/") + "/"
        names = sorted(
            path
            for path in self.state.files
            if path.startswith(prefix) and path.removeprefix(prefix) > meta.after
        )
        page = [self.state.files[path].status for path in names[: meta.limit]]
        return m.Listing(page, len(names) > meta.limit), ()

    # The rest.

    def _mkdirs(self, meta: m.Mkdirs, payload: Any) -> Answer:
        created = meta.path not in self.state.directories
        self.state.directories.add(meta.path)
        return m.Created(created), ()

    def _rename(self, meta: m.Rename, payload: Any) -> Answer:
        file = self._find(meta.source)
        if meta.target in self.state.files and not meta.overwrite:
            raise AlreadyExists(f"{meta.target} exists")
        self.state.files[meta.target] = self.state.files.pop(meta.source)
        assert file is self.state.files[meta.target]
        return m.Empty(), ()

    def _delete(self, meta: m.Delete, payload: Any) -> Answer:
        return m.Deleted(self.state.files.pop(meta.path, None) is not None), ()

    def _summary(self, meta: m.Summary, payload: Any) -> Answer:
        sizes = [file.status.size for file in self.state.files.values()]
        return m.Summed(len(sizes), len(self.state.directories), sum(sizes)), ()

    def _status(self, meta: m.Empty, payload: Any) -> Answer:
        return b'{"margin": 2, "parity_shards": 2, "margin_hosts": 0, "agents": []}', ()


def _cut(extents: list[Extent], start: int, length: int) -> list[Extent]:
    parts, position = [], 0
    for extent in extents:
        low, high = max(start, position), min(start + length, position + extent.length)
        if low < high:
            parts.append(Extent(extent.stripe, extent.offset + low - position, high - low))
        position += extent.length
    return parts


class FakeCluster:
    def __init__(
        self,
        directory: Path,
        *,
        agents: int = 3,
        local: bool = True,
        keyring: Keyring = KEYRING,
        authority: Pair | None = None,
    ) -> None:
        """With an `authority` its TCP doors are encrypted."""
        self.keyring = keyring
        self.authority = authority
        self.state = State()
        self.directory = directory
        self._local = local
        self._thread = LoopThread(uvloop.new_event_loop)
        self.agents: dict[int, FakeAgent] = {}
        self.gateways: dict[int, MortalGateway] = {}
        for slot in range(agents):
            self.start(slot)

    @property
    def descriptor(self) -> Descriptor:
        peers = list(self.state.peers.values())
        return Descriptor(
            cluster=CLUSTER,
            name="test",
            key=self.keyring.hex(),
            authority=self.authority.chain.decode() if self.authority else "",
            gateways=peers,
        )

    def start(self, slot: int) -> None:
        """A new life of this slot, with empty memory, at a new port."""
        agent = FakeAgent(self, slot)
        path = self.directory / "sockets" / f"agent-{slot}.sock"
        doorkeeper = Doorkeeper(self.keyring, slot=slot)
        options: dict[str, Any] = {"doorkeeper": doorkeeper}
        if self.authority is not None:
            pair = issue(self.authority, cluster=CLUSTER, slot=slot, hosts=["127.0.0.1"])
            options["tls"] = Certificates(pair, self.authority.chain)
        gateway = self._thread.run(start_gateway(agent, path, **options))
        self.agents[slot], self.gateways[slot] = agent, gateway
        self.state.peers[slot] = m.Peer(
            slot=slot,
            gateway=f"127.0.0.1:{gateway.tcp_port}",
            socket=str(path) if self._local else "",
            host="here",
            up=True,
        )
        self.state.roster_version += 1

    def kill(self, slot: int) -> None:
        self._thread.run(self.die(self.agents[slot]))

    async def die(self, agent: FakeAgent) -> None:
        """For faults, too: kills the gateway of that agent from inside its own handler."""
        gateway = self.gateways.pop(agent.slot, None)
        if gateway is None:
            return
        if agent.slot == self.state.leader:
            self.state.leader = min(self.gateways, default=None)
        for connection in list(gateway._connections):
            connection.abort()
        task = asyncio.get_running_loop().create_task(gateway.die())
        self._dying = task

    def close(self) -> None:
        for slot in list(self.gateways):
            try:
                self._thread.run(self.gateways.pop(slot).stop())
            except FutureTimeout as error:
                raise AssertionError(f"agent {slot} does not stop") from error
        self._thread.close()
