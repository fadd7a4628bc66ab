"""A cluster as the tier sees it: a log that goes on, leaders that drain it and lose their office
without noticing, and a horizon that only the right leader moves.

What is replicated (log, horizon, places) is simply shared here: that part has a simulator of its
own. A leader follows the drainer's rules: it probes before its first round, adopts what an
earlier leader appended, and makes no manifest before the horizon has reached the one before.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from diskless.errors import DamagedTier, StoreDown, Superseded
from diskless.tier import read, restore
from diskless.tier.chain import Chain
from diskless.tier.collect import Plan
from diskless.tier.manifest import FileRow, Manifest, SegmentRow, Stream
from diskless.tier.retention import Rule
from diskless.tier.round import Finished, Round
from diskless.tier.sweep import Collector
from tests.tier.faulty import FaultyStore, Glance
from tests.tier.model import Log, encode, picture, replay

ROUND_BYTES_MAX = 500


class Violation(AssertionError):
    """A promise was broken."""


class Deposed(Exception):
    """The horizon moves only for the leader."""


@dataclass
class Rates:
    """How a schedule's leaders work."""

    whole: float
    collect: float
    give_up: float
    rules: tuple[Rule, ...]
    listing: float = 0.5


@dataclass(frozen=True)
class Held:
    """The replicated state of the tier: what the horizon is, and where files lie."""

    horizon: Manifest | None = None
    places: dict[int, FileRow] = field(default_factory=dict)
    segments: dict[int, SegmentRow] = field(default_factory=dict)

    def after(self, manifest: Manifest, rows: list[FileRow], alive: set[int]) -> Held:
        places = {} if manifest.whole else dict(self.places)
        segments = {} if manifest.whole else dict(self.segments)
        segments.update((row.number, row) for row in manifest.rows)
        places.update((row.id, row) for row in rows)
        for number in manifest.dropped:
            segments.pop(number, None)
        return Held(manifest, {id_: places[id_] for id_ in places if id_ in alive}, segments)

    def live_bytes(self, alive: set[int]) -> dict[int, int]:
        live = dict.fromkeys(self.segments, 0)
        for id_, row in self.places.items():
            if id_ in alive:
                live[row.segment] += row.stored_bytes
        return live


@dataclass
class Cluster:
    store: FaultyStore
    rng: random.Random
    rates: Rates
    id: str
    epoch: int
    log: Log
    held: Held = field(default_factory=Held)
    term: int = 0
    deposed_op: dict[int, int] = field(default_factory=dict)
    """How much of the log a leader knew when its term ended."""
    announced_op: int = 0
    ended: str = ""
    """Why it stopped draining."""
    chain_type: type[Chain] = Chain
    round_type: type[Round] = Round
    leader_type: type[Leader] | None = None
    time_ms: int = 0

    def chain(self) -> Chain:
        return self.chain_type(self.store, cluster=self.id, name="sim", epoch=self.epoch)

    def commit(self, term: int, manifest: Manifest, rows: list[FileRow]) -> Held:
        """The horizon, with what it takes: one command, which only a leader gets through."""
        if term != self.term:
            raise Deposed
        horizon = self.held.horizon
        if horizon is None or manifest.number > horizon.number:
            if horizon is not None and manifest.number != horizon.number + 1:
                raise Violation(f"a gap: {horizon.number} is followed by {manifest.number}")
            alive = set(self.log.state(manifest.op).values())
            self.held = self.held.after(manifest, rows, alive)
            self.announced_op = max(self.announced_op, manifest.op)
        return self.held

    def depose(self) -> int:
        """A new term begins; whoever led before is not told."""
        self.deposed_op[self.term] = self.log.op
        self.term += 1
        return self.term

    async def clients(self) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * 0.4)
            for _ in range(self.rng.choice((1, 1, 1, 8))):
                self.log.act(self.rng)
            self.time_ms += self.rng.choice((0, 10, 5000))

    async def lead(self, term: int) -> None:
        leader = (self.leader_type or Leader)(self, term)
        try:
            await leader.drain()
        except Deposed:
            return
        except Superseded as error:
            self.ended = str(error)
        except DamagedTier:
            # Others may have gone on, and cleared away what this one was about to read.
            if term == self.term and not await self.superseded():
                raise

    async def superseded(self) -> bool:
        chain = Chain(Glance(self.store), cluster=self.id, name="sim", epoch=self.epoch)
        newest = await chain.newest()
        try:
            chain.judge(newest) if newest else None
        except Superseded as error:
            self.ended = str(error)
        return bool(self.ended)


class Leader:
    def __init__(self, cluster: Cluster, term: int) -> None:
        self.cluster = cluster
        self.term = term
        self.rng = cluster.rng
        self.chain = cluster.chain()
        self.held = cluster.held
        self.newest: Manifest | None = None
        self.collector = Collector(self.chain, cluster.rates.rules)

    async def drain(self) -> None:
        await self.patient(self.begin)
        while True:
            await self.patient(self.round)
            await asyncio.sleep(self.rng.random() * 0.5)

    async def patient(self, work) -> None:  # type: ignore[no-untyped-def]
        while True:
            try:
                return await work()
            except StoreDown:
                await asyncio.sleep(self.rng.random() * 3)

    async def begin(self) -> None:
        hint = self.held.horizon.number if self.held.horizon else 0
        newest = await self.chain.newest(hint)
        if newest is not None:
            self.chain.judge(newest)
            if newest.number > hint:
                await self.adopt(newest)
        self.newest = newest

    async def adopt(self, manifest: Manifest) -> None:
        rows = [row async for batch in restore.tables(self.chain, manifest) for row in batch]
        self.held = self.cluster.commit(self.term, manifest, rows)
        self.newest = manifest
        self.collector.landed(manifest)

    async def round(self) -> None:
        cluster, newest = self.cluster, self.newest
        op = cluster.deposed_op.get(self.term, cluster.log.op)
        if newest is not None and op == newest.op:
            return
        told = await self.collection(newest)
        finished = await self.pack(op, newest, told)
        while True:
            try:
                appended = await self.chain.append(finished)
                break
            except StoreDown:
                if self.rng.random() < cluster.rates.give_up:
                    raise  # The next round is another one, for the same number.
                await asyncio.sleep(self.rng.random() * 2)
        if not appended.mine:
            await self.adopt(appended.manifest)
            return
        await asyncio.sleep(self.rng.random() * 0.1)
        self.held = cluster.commit(self.term, appended.manifest, list(finished.rows))
        self.newest = appended.manifest
        self.collector.landed(appended.manifest)
        if appended.manifest.doomed:
            await self.patient(lambda: self.clear(appended.manifest))

    async def clear(self, manifest: Manifest) -> None:
        await self.collector.clear(manifest)

    async def collection(self, newest: Manifest | None) -> Plan | None:
        cluster = self.cluster
        if newest is None or self.rng.random() > cluster.rates.collect:
            return None
        alive = set(cluster.log.state(newest.op).values())
        listing = self.rng.random() < cluster.rates.listing
        return await self.collector.plan(newest, self.held.live_bytes(alive), listing=listing)

    async def pack(self, op: int, newest: Manifest | None, told: Plan | None) -> Finished:
        round_id = f"{self.rng.getrandbits(64):016x}"
        make = self.cluster.round_type
        async with make(
            self.chain, newest, round_id=round_id, limit_bytes=ROUND_BYTES_MAX
        ) as round_:
            return await self.fill(round_, op, newest, told)

    async def fill(
        self, round_: Round, op: int, newest: Manifest | None, told: Plan | None
    ) -> Finished:
        cluster, log = self.cluster, self.cluster.log
        whole = newest is None or (told is not None and self.rng.random() < cluster.rates.whole)
        state = log.state(op)
        places = self.held.places
        rewritten = set(told.rewrite) if told else set()
        kept = [
            places[id_]
            for id_ in state.values()
            if id_ in places and places[id_].segment not in rewritten
        ]
        for id_ in sorted(set(state.values()) - {row.id for row in kept}):
            await round_.add_file(id_, log.bytes[id_])
        used = {row.segment for row in kept}
        if whole:
            await round_.add(Stream.PICTURE, encode(state))
            for number in sorted(used):
                rows = [row for row in kept if row.segment == number]
                round_.name_segment(self.held.segments[number], rows)
            for piece in self.collector.pieces():
                await round_.add(Stream.LEDGER, piece)
        else:
            assert newest is not None
            entries = log.since(newest.op, op)
            for at in range(0, len(entries), 3):
                await round_.add(Stream.JOURNAL, encode(entries[at : at + 3]))
        return await round_.finish(
            op=op,
            time_ms=cluster.time_ms,
            last_file=log.last_file_at(op),
            whole=whole,
            dropped=() if whole else sorted(set(self.held.segments) - used),
            points=told.points if told else () if newest is None else None,
            doomed=told.doomed if told else (),
        )


@dataclass
class Restored:
    manifest: Manifest
    state: dict[str, int]
    places: dict[int, FileRow]
    segments: dict[int, SegmentRow]
    bytes: dict[int, bytes]


async def load(chain: Chain, manifest: Manifest) -> Restored:
    """The state at `manifest` with every file's bytes, as a restore gets it."""
    state: dict[str, int] = {}
    places: dict[int, FileRow] = {}
    segments: dict[int, SegmentRow] = {}
    op = 0
    async for step in restore.contents(chain, manifest):
        if step.segments is not None:
            if step.manifest.whole:
                segments, places = {}, {}
            segments.update((row.number, row) for row in step.segments)
        if step.picture is not None:
            state, op = picture(step.picture), step.manifest.op
        if step.journal is not None:
            op = replay(state, step.journal)
        for row in step.rows or ():
            places[row.id] = row
        if step.rows is None and step.segments is None:
            continue
        for number in step.manifest.dropped:
            segments.pop(number, None)
    if op != manifest.op and op:
        raise Violation(f"manifest {manifest.number} says {manifest.op} and leads to {op}")
    return Restored(manifest, state, places, segments, {})


async def load_bytes(chain: Chain, found: Restored, sizes: dict[int, int]) -> None:
    for id_ in sorted(found.state.values()):
        if id_ not in found.places:
            raise Violation(f"file {id_} is in no segment")
        row = found.places[id_]
        if row.segment not in found.segments:
            raise Violation(f"file {id_} is in segment {row.segment}, which nobody names")
        name = found.segments[row.segment].name
        views = await read.read_file(chain.store, name, row.place, id_=id_, size=sizes[id_])
        found.bytes[id_] = b"".join(views)
    alive = set(found.state.values())
    found.places = {id_: row for id_, row in found.places.items() if id_ in alive}
