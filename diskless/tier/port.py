"""The tier as an agent's parts know it: the port of `agent.ports` over a store and a chain.

Owns where in the chain the next round goes, and what of the past it names. One leader uses the
chain at a time; every agent uploads and reads. To the chain a change's number is the position
in the log.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

from diskless.agent.ports import (
    Buffer,
    FileRow,
    Landed,
    Loaded,
    SegmentRow,
    Stretch,
    Survey,
    TierCounts,
    Uploaded,
)
from diskless.errors import DamagedTier, DisklessError, StoreDown
from diskless.identity.cipher import Cipher, read_key
from diskless.model import TierOptions
from diskless.namespace.views import TierPlace
from diskless.tier import form, restore, retention, round
from diskless.tier import manifest as manifests
from diskless.tier.address import open_store
from diskless.tier.chain import Chain
from diskless.tier.collect import Plan
from diskless.tier.manifest import Manifest, Stream
from diskless.tier.read import read_file
from diskless.tier.retention import Rule
from diskless.tier.store import Metered, Missing, ReadOnly
from diskless.tier.sweep import Collector

log = logging.getLogger(__name__)

_entries = msgspec.msgpack.Decoder(list[bytes])


INDEXES_MAX = 64
"""Of files that are read a part at a time: some KiB each at most."""


class TierPort:
    """Implements `agent.ports.Tier`."""

    def __init__(
        self,
        store: Metered,
        *,
        cluster: str,
        name: str,
        cipher: Cipher | None = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        """`rules` say which manifests are kept to return to, beside the newest."""
        self._store = store
        self._cluster = cluster
        self._name = name
        self._cipher = cipher
        self._indexes: dict[tuple[str, int], Sequence[int]] = {}  # of large files
        self._chain: Chain | None = None
        self._rules = rules
        self._after: Manifest | None = None
        self._collector: Collector | None = None
        self.plan: Plan | None = None
        """What the next whole round says of the past."""

    @property
    def uri(self) -> str:
        return self._store.uri

    def counts(self) -> TierCounts:
        counts = self._store.counts
        return TierCounts(
            counts.requests,
            counts.objects_put,
            counts.bytes_put,
            counts.bytes_got,
            counts.requests_failed,
        )

    # -- the chain ------------------------------------------------------------------

    async def look(self, number: int, *, epoch: int, rows: bool = True) -> Landed | None:
        if self._chain is None or self._chain.epoch != epoch:
            self._chain, self._after = self._begin(epoch), None
            self._collector = Collector(self._chain, self._rules)
        if number == 0:
            self._after = None
            return None  # a chain that is to begin
        chain = self._chain
        try:
            found = await chain.read(number)
        except DamagedTier as error:
            if isinstance(error.__cause__, Missing):
                return None
            raise
        chain.judge(found)
        await self._store.settle(found.object_name)
        told: list[manifests.FileRow] = []
        if rows:
            told = [row async for part in restore.tables(chain, found) for row in part]
        self._follow(found)
        return await _landed(found, told)

    def _follow(self, manifest: Manifest) -> None:
        self._after, self.plan = manifest, None
        if self._collector is not None:
            self._collector.landed(manifest)

    async def survey(self, live_bytes: Mapping[int, int], *, thorough: bool) -> Survey:
        self.plan = None
        if self._after is None or self._collector is None:
            return Survey(whole=True)
        try:
            found = await self._collector.plan(self._after, live_bytes, listing=thorough)
        except DamagedTier as error:
            log.warning("nothing of the tier is collected error=%s", error)
            return Survey()
        self.plan = found if thorough else None
        return Survey(found.whole, frozenset(found.rewrite))

    def ledger_pieces(self) -> list[bytes]:
        """The chain's past, as a whole manifest carries it on."""
        return list(self._collector.pieces()) if self._collector is not None else []

    def _begin(self, epoch: int) -> Chain:
        return Chain(
            self._store, cluster=self._cluster, name=self._name, epoch=epoch, cipher=self._cipher
        )

    def draft(self, round_id: str) -> "ChainDraft":
        assert self._chain is not None, "nobody has looked at the chain yet"
        return ChainDraft(self, round.Round(self._chain, self._after, round_id=round_id))

    async def append(self, finished: round.Finished) -> Landed:
        """Gives a round its number, or finds who has it."""
        assert self._chain is not None
        appended = await self._chain.append(finished)
        if appended.mine:
            self._follow(appended.manifest)
            return await _landed(appended.manifest, finished.rows)
        found = await self.look(appended.manifest.number, epoch=self._chain.epoch)
        assert found is not None
        return found

    async def clear(self, number: int) -> None:
        """Deletes what the manifest of that number, the last one, has doomed. What is left over
        is found by a later listing."""
        collector, manifest = self._collector, self._after
        if collector is None or manifest is None or manifest.number != number:
            return
        if not manifest.doomed:
            return
        try:
            await collector.clear(manifest)
        except DisklessError as error:
            log.warning("garbage not deleted manifest=%d error=%s", number, error)

    # -- bytes ----------------------------------------------------------------------

    async def upload(self, files: Sequence[Stretch], *, number: int, name: str) -> Uploaded:
        segment, rows = await round.upload(
            self._store, name=name, number=number, files=files, cipher=self._cipher
        )
        return Uploaded(segment.number, segment.name, segment.bytes, _rows(rows))

    async def confirm(self, uploaded: Uploaded) -> None:
        try:
            found = await self._store.size(uploaded.name)
        except Missing:
            found = 0
        if found != uploaded.bytes:
            raise StoreDown(
                f"{uploaded.name}, which another agent has uploaded, has {found} bytes in "
                f"{self.uri} here and not {uploaded.bytes}: a directory must be the same one on "
                "all hosts, as a shared mount is"
            )

    async def read(
        self, place: TierPlace, *, file: int, size: int, start: int, stop: int
    ) -> list[memoryview]:
        views = await read_file(
            self._store,
            place.segment,
            form.Place(0, place.offset, place.stored_bytes, place.flags, place.start, place.size),
            id_=file,
            size=size,
            start=start,
            end=stop,
            cipher=self._cipher,
            indexes=self._indexes,
        )
        while len(self._indexes) > INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]
        return views

    async def contents(self, number: int, *, epoch: int) -> AsyncIterator[Loaded]:
        chain = self._begin(epoch)
        async for step in restore.contents(chain, await chain.read(number)):
            if step.segments is not None:
                epoch = step.manifest.epoch if step.manifest.takes_over else 0
                yield Loaded(epoch=epoch, segments=_segments(step.segments))
            if step.picture is not None:
                yield Loaded(picture=step.picture, done=step.done)
            if step.journal is not None:
                yield Loaded(journal=_decoded(step), done=step.done)
            if step.rows is not None:
                yield Loaded(rows=_rows(step.rows), done=step.done)


def open_port(
    uri: str, options: TierOptions, *, cluster: str, name: str, read_only: bool = False
) -> TierPort:
    """An agent's own way to the tier; asks nothing of it yet. Raises BadSettings."""
    credentials = Path(options.credentials) if options.credentials else None
    cipher = read_key(Path(options.key)) if options.key else None
    store = open_store(uri, credentials=credentials)
    if read_only:
        store = Metered(ReadOnly(store))
    rules = retention.parse(options.keep)
    return TierPort(store, cluster=cluster, name=name, cipher=cipher, rules=rules)


class ChainDraft:
    """Implements `agent.ports.Draft`."""

    def __init__(self, port: TierPort, wanted: round.Round) -> None:
        self._port = port
        self._round = wanted
        self._whole = False

    @property
    def round_id(self) -> str:
        return self._round.round_id

    def reserve(self) -> tuple[int, str]:
        return self._round.reserve()

    def name(self, uploaded: Uploaded) -> None:
        self._round.name_segment(*_named(uploaded))

    def keep(self, held: Uploaded) -> None:
        self._round.keep_segment(*_named(held))

    async def add_file(self, id_: int, data: Buffer) -> None:
        await self._round.add_file(id_, data)

    async def add_picture(self, chunk: bytes) -> None:
        self._whole = True
        await self._round.add(Stream.PICTURE, chunk)

    async def add_journal(self, entries: Sequence[bytes]) -> None:
        await self._round.add(Stream.JOURNAL, msgspec.msgpack.encode(entries))

    async def append(self, *, change: int, op: int, time_ms: int, last_file: int) -> Landed:
        told = self._port.plan if self._whole else None
        if told is not None:
            for piece in self._port.ledger_pieces():
                await self._round.add(Stream.LEDGER, piece)
        points = None if self._round.after is not None else ()
        finished = await self._round.finish(
            op=change,
            time_ms=time_ms,
            last_file=last_file,
            whole=self._whole,
            points=told.points if told is not None else points,
            doomed=told.doomed if told is not None else (),
        )
        landed = await self._port.append(finished)
        if landed.round_id != self.round_id:
            return landed
        return msgspec.structs.replace(landed, op=op)

    async def abandon(self) -> None:
        await self._round.__aexit__()


def _named(held: Uploaded) -> tuple[manifests.SegmentRow, list[manifests.FileRow]]:
    return manifests.SegmentRow(*held.segment), [manifests.FileRow(*row) for row in held.rows]


async def _landed(manifest: Manifest, rows: Sequence[manifests.FileRow]) -> Landed:
    told: list[FileRow] = []
    for at in range(0, len(rows), manifests.TABLE_ROWS_MAX):
        told += _rows(rows[at : at + manifests.TABLE_ROWS_MAX])
        await asyncio.sleep(0)  # There may be millions.
    return Landed(
        epoch=manifest.epoch,
        number=manifest.number,
        round_id=manifest.round_id,
        change=manifest.op,
        op=0,
        time_ms=manifest.time_ms,
        last_file=manifest.last_file,
        base=manifest.base,
        journal_bytes=sum(part.stored_bytes for part in manifest.journal),
        segments=_segments(manifest.rows),
        rows=told,
    )


def _decoded(step: restore.Step) -> list[bytes]:
    assert step.journal is not None
    try:
        return _entries.decode(step.journal)
    except msgspec.DecodeError as error:
        raise form.damaged(step.manifest.object_name, str(error)) from None


def _segments(rows: Sequence[manifests.SegmentRow]) -> tuple[SegmentRow, ...]:
    return tuple((row.number, row.name, row.bytes) for row in rows)


def _rows(rows: Sequence[manifests.FileRow]) -> tuple[FileRow, ...]:
    return tuple(
        (row.id, row.segment, row.offset, row.stored_bytes, row.flags)
        + ((row.start, row.size) if row.size else ())
        for row in rows
    )
