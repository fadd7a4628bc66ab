"""The calling side: this agent's streams to all others, behind `agent.ports`.

A stream for each service and address, opened on first use and kept, each after an
introduction (`rpc.introduction`). Counts every message it sends, because a message is what
costs.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from diskless.agent.faults import Faults
from diskless.agent.notebook import Fetch, Index, NotesCall, Tell
from diskless.agent.noted import IndexEntry, Row
from diskless.agent.ports import (
    Beat,
    Buffer,
    FileRow,
    Pulse,
    Rebuilt,
    Uploaded,
    UploadPart,
)
from diskless.config import Tuning
from diskless.errors import Unavailable, error_from_wire
from diskless.identity.claims import Keyring
from diskless.model import (
    AgentInfo,
    FileRecord,
    HeldShard,
    Place,
    ShardName,
    Stripe,
    slot_name,
)
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.rpc.beats import BeatEncoder, decode_pulse
from diskless.rpc.exchange import Link
from diskless.rpc.introduction import Facts, Introducer
from diskless.rpc.lane import Visitor
from diskless.rpc.laned import LanedLink, VoterLink
from diskless.rpc.line import Line
from diskless.rpc.services import (
    MEMBERSHIP,
    NAMESPACE,
    PROTOCOL,
    REPLICA_METHOD,
    SHARDS,
    VOTER_BATCH,
    Service,
    format_protocol,
)
from diskless.rpc.tls import Tls
from diskless.rpc.v1 import namespace_pb2, shards_pb2

UPLOAD_TIMEOUT_S = 60.0
"""For a segment: its bytes are fetched from agents, packed, and written to a distant store."""

_decode_index = msgspec.msgpack.Decoder(list[IndexEntry]).decode
_decode_row: Callable[[bytes], Row | None] = msgspec.msgpack.Decoder(Row | None).decode
_decode_rows = msgspec.msgpack.Decoder(tuple[FileRow, ...]).decode


class Peers:
    """Implements the peers of `agent.ports` over gRPC: of shards, workers, uploaders, the leader,
    voters and notes."""

    def __init__(
        self,
        *,
        slot: int,
        keyring: Keyring,
        tuning: Tuning,
        faults: Faults,
        tls: Tls | None = None,
    ) -> None:
        self._slot = slot
        self._faults = faults
        self.protocol = PROTOCOL
        self.address = ""
        """Where this agent listens itself; voters tell each other."""
        self.on_broken: Callable[[int, str], None] = lambda slot, address: None
        """Told of a slot and an address whose stream of voters' messages broke."""
        self._credential = keyring.agent(slot_name(slot))
        self._introducer = Introducer(self._credential)
        self._tls = tls
        self._tuning = tuning
        self._links: dict[tuple[str, int, str], tuple[Line, Link]] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._closed = False
        self.messages_sent = 0
        self._beats = BeatEncoder()

    async def store(
        self,
        agent: AgentInfo,
        *,
        stripe: str,
        index: int,
        data: Buffer,
        checksums: bytes,
        version: int = 0,
        from_reserve: bool = False,
    ) -> int:
        store = shards_pb2.StoreShard(
            stripe=stripe,
            index=index,
            checksums=checksums,
            data_bytes=len(data),
            version=version,
            from_reserve=from_reserve,
        )
        answer, _ = await self._call(
            SHARDS,
            agent.slot,
            agent.address,
            shards_pb2.ShardCall(store=store),
            payload=data,
            timeout_s=self._tuning.store_timeout_s,
        )
        return int(answer.stored.incarnation)

    async def fetch(
        self, agent: AgentInfo, *, stripe: str, index: int, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        fetch = shards_pb2.FetchBlocks(
            stripe=stripe, index=index, first_block=first_block, blocks=blocks
        )
        answer, payload = await self._call(
            SHARDS,
            agent.slot,
            agent.address,
            shards_pb2.ShardCall(fetch=fetch),
            timeout_s=self._tuning.fetch_timeout_s,
        )
        return payload, answer.blocks.checksums

    async def claim(
        self, agent: AgentInfo, *, file: int, chunks: range, without: int | None
    ) -> list[int]:
        claim = shards_pb2.ClaimChunks(
            file=file,
            first=chunks.start,
            count=len(chunks),
            slot=self._slot,
            without=0 if without is None else without + 1,
        )
        answer, _ = await self._call(
            SHARDS,
            agent.slot,
            agent.address,
            shards_pb2.ShardCall(claim=claim),
            timeout_s=self._tuning.fetch_timeout_s,
        )
        return list(answer.claimed.slots)

    async def drop(self, agent: AgentInfo, stripes: Sequence[str]) -> None:
        call = shards_pb2.ShardCall(drop=shards_pb2.DropStripes(stripes=stripes))
        await self._call(
            SHARDS, agent.slot, agent.address, call, timeout_s=self._tuning.store_timeout_s
        )

    async def drop_superseded(self, agent: AgentInfo, shards: Sequence[HeldShard]) -> None:
        superseded = [
            shards_pb2.SupersededShard(stripe=s.stripe, index=s.index, version=s.version)
            for s in shards
        ]
        call = shards_pb2.ShardCall(drop_superseded=shards_pb2.DropSuperseded(shards=superseded))
        await self._call(
            SHARDS, agent.slot, agent.address, call, timeout_s=self._tuning.store_timeout_s
        )

    async def verify(self, agent: AgentInfo, *, stripe: str, index: int) -> bool:
        call = shards_pb2.ShardCall(verify=shards_pb2.VerifyShard(stripe=stripe, index=index))
        answer, _ = await self._call(
            SHARDS, agent.slot, agent.address, call, timeout_s=self._tuning.fetch_timeout_s
        )
        return bool(answer.verified.good)

    async def miss(self, agent: AgentInfo, shards: Sequence[ShardName]) -> int:
        names = [shards_pb2.ShardName(stripe=stripe, index=index) for stripe, index in shards]
        call = shards_pb2.ShardCall(miss=shards_pb2.MissShards(shards=names))
        answer, _ = await self._call(
            SHARDS, agent.slot, agent.address, call, timeout_s=self._tuning.fetch_timeout_s
        )
        return int(answer.missed.shards)

    async def rebuild(
        self, agent: AgentInfo, stripe: Stripe, targets: Mapping[int, int]
    ) -> Rebuilt:
        """Waits for the fetches and for the stores that the other agent waits for."""
        rebuild = shards_pb2.RebuildShards(
            stripe=msgspec.msgpack.encode(stripe),
            targets=[shards_pb2.ShardTarget(index=i, slot=s) for i, s in targets.items()],
        )
        answer, _ = await self._call(
            SHARDS,
            agent.slot,
            agent.address,
            shards_pb2.ShardCall(rebuild=rebuild),
            timeout_s=self._tuning.fetch_timeout_s + self._tuning.store_timeout_s,
        )
        return Rebuilt(
            {s.index: Place(s.slot, s.incarnation) for s in answer.rebuilt.shards},
            {
                f.slot: error_from_wire(f.refusal.reason, f.refusal.message)
                for f in answer.rebuilt.failed
            },
        )

    async def upload(
        self,
        agent: AgentInfo,
        records: Sequence[FileRecord],
        stripes: Sequence[Stripe],
        *,
        number: int,
        name: str,
        part: UploadPart | None = None,
    ) -> Uploaded:
        upload = shards_pb2.UploadSegment(
            number=number,
            name=name,
            records=msgspec.msgpack.encode(records),
            stripes=msgspec.msgpack.encode(stripes),
            start=part.start if part else 0,
            end=part.end if part else 0,
            run=part.run if part else "",
        )
        answer, _ = await self._call(
            SHARDS,
            agent.slot,
            agent.address,
            shards_pb2.ShardCall(upload=upload),
            timeout_s=UPLOAD_TIMEOUT_S,
        )
        done = answer.uploaded
        return Uploaded(number, done.name, done.bytes, _decode_rows(done.rows))

    async def execute(
        self, slot: int, address: str, command: c.Command, *, timeout_s: float
    ) -> tuple[c.Result, ...]:
        call = namespace_pb2.NamespaceCall(command=c.encode(command))
        answer, _ = await self._call(NAMESPACE, slot, address, call, timeout_s=timeout_s)
        return c.decode_results(answer.result)

    async def query(self, slot: int, address: str, query: q.Query, *, timeout_s: float) -> Any:
        call = namespace_pb2.NamespaceCall(query=q.encode(query))
        answer, _ = await self._call(NAMESPACE, slot, address, call, timeout_s=timeout_s)
        return q.decode_answer(query, answer.result)

    async def tell_notes(
        self, slot: int, address: str, rows: Sequence[Row], *, timeout_s: float
    ) -> None:
        await self._about_notes(slot, address, Tell(list(rows)), timeout_s)

    async def notes_index(
        self, slot: int, address: str, after: str, *, timeout_s: float
    ) -> list[IndexEntry]:
        return _decode_index(await self._about_notes(slot, address, Index(after), timeout_s))

    async def notes_of(self, slot: int, address: str, path: str, *, timeout_s: float) -> Row | None:
        return _decode_row(await self._about_notes(slot, address, Fetch(path), timeout_s))

    async def _about_notes(
        self, slot: int, address: str, call: NotesCall, timeout_s: float
    ) -> bytes:
        asked = namespace_pb2.NamespaceCall(notes=msgspec.msgpack.encode(call))
        answer, _ = await self._call(NAMESPACE, slot, address, asked, timeout_s=timeout_s)
        found: bytes = answer.result
        return found

    async def beat(self, agent: AgentInfo, beat: Beat, *, timeout_s: float) -> Pulse:
        call = self._beats.encode(beat)
        answer, _ = await self._call(
            MEMBERSHIP, agent.slot, agent.address, call, timeout_s=timeout_s
        )
        return decode_pulse(answer, beat=beat, boot=agent.boot)

    def post(self, slot: int, address: str, message: bytes) -> None:
        """One message to another voter, if it can be had there."""
        if not self._faults.disturbs:
            known = self._links.get((REPLICA_METHOD, slot, address))
            if known is not None and type(known[1]) is VoterLink:
                known[1].post(message)
            else:
                self._post(slot, address, message)
        elif slot not in self._faults.cut:
            asyncio.get_running_loop().call_later(
                self._faults.delays_s.get(slot, 0.0), self._post, slot, address, message
            )

    def _post(self, slot: int, address: str, message: bytes) -> None:
        if self._closed:
            return
        key = (REPLICA_METHOD, slot, address)
        known = self._links.get(key)
        if known is None:
            known = self._links[key] = self._introduce(slot, address)
        link = known[1]
        assert isinstance(link, VoterLink)
        link.post(message)

    def _introduce(self, slot: int, address: str) -> tuple[Line, VoterLink]:
        line = Line(slot, address, self._tls)
        return line, VoterLink(
            partial(self._open, line, REPLICA_METHOD),
            peer=f"{slot_name(slot)} at {address}",
            host=line.host,
            visitor=self._visitor(slot),
            join=VOTER_BATCH.join,
            split=VOTER_BATCH.split,
            count_message=self._count_message,
            on_broken=lambda: self.on_broken(slot, address),
        )

    def _visitor(self, slot: int, service: str = "") -> Visitor:
        return Visitor(
            credential=self._credential,
            slot=slot,
            sender=self._slot,
            address=self.address,
            tls=self._tls,
            service=service,
        )

    async def close(self) -> None:
        self._closed = True
        links, self._links = self._links, {}
        for line, link in links.values():
            link.close()
            await line.close()

    async def _call(
        self,
        service: Service,
        slot: int,
        address: str,
        call: Any,
        *,
        payload: Buffer | None = None,
        timeout_s: float,
    ) -> tuple[Any, memoryview]:
        if self._faults.disturbs:
            await self._faults.reach(slot, timeout_s=timeout_s)
        link = self._link(service, slot, address)
        try:
            answer, data = await link.call(call, payload, timeout_s=timeout_s)
        except Unavailable:
            self._doubt(slot, address)
            raise
        if answer.HasField("refusal"):
            raise error_from_wire(answer.refusal.reason, answer.refusal.message)
        return answer, data

    def _doubt(self, slot: int, address: str) -> None:
        """A leader looks whether an agent that did not answer does so on no stream."""
        _, link = self._links.get((MEMBERSHIP.method, slot, address), (None, None))
        if isinstance(link, LanedLink):
            link.doubt_stream()

    def _link(self, service: Service, slot: int, address: str) -> Link:
        key = (service.method, slot, address)
        if key not in self._links:
            line = Line(slot, address, self._tls)
            open_stream = partial(self._open, line, service.method)
            peer = f"{slot_name(slot)} at {address}"
            if service is MEMBERSHIP:
                link: Link = LanedLink(
                    open_stream,
                    peer=peer,
                    host=line.host,
                    visitor=self._visitor(slot, service.method),
                    join=service.calls.join,
                    split=service.answers.split,
                    count_message=self._count_message,
                )
            else:
                link = Link(
                    open_stream,
                    peer=peer,
                    join=service.calls.join,
                    split=service.answers.split,
                    count_message=self._count_message,
                )
            self._links[key] = line, link
        return self._links[key][1]

    async def _open(self, line: Line, method: str) -> Any:
        """A stream to an agent, after both have proved themselves."""
        facts = Facts(
            method=method,
            slot=line.slot,
            dialled=line.address,
            sender=self._slot,
            address=self.address,
            protocol=format_protocol(self.protocol),
        )
        return await self._introducer.open(await line.channel(), facts)

    def retain(self, addresses: Collection[str]) -> None:
        """Closes the streams to addresses that no agent has any more."""
        for key in [key for key in self._links if key[2] not in addresses]:
            line, link = self._links.pop(key)
            link.close()
            task = asyncio.ensure_future(line.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _count_message(self) -> None:
        self.messages_sent += 1
