"""A tier written by hand: rounds of given files, for tests that need one of a certain shape."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from diskless.agent.ports import Stretch
from diskless.identity.cipher import Cipher
from diskless.tier import read, restore
from diskless.tier.chain import Chain
from diskless.tier.collect import Plan
from diskless.tier.manifest import FileRow, Manifest, SegmentRow, Stream
from diskless.tier.round import Finished, Round, upload
from diskless.tier.store import Store


@dataclass
class Hand:
    """One leader of one cluster."""

    store: Store
    cluster: str = "one"
    epoch: int = 1
    cipher: Cipher | None = None
    newest: Manifest | None = None
    op: int = 0
    rows: dict[int, list[FileRow]] = field(default_factory=dict)
    """Of each file, one for each of its parts."""
    segments: dict[int, SegmentRow] = field(default_factory=dict)
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = Chain(
            self.store, cluster=self.cluster, name="hand", epoch=self.epoch, cipher=self.cipher
        )

    async def pack(
        self,
        files: Mapping[int, bytes] | None = None,
        *,
        large: Mapping[int, Sequence[bytes]] | None = None,
        whole: bool = False,
        drop: Sequence[int] = (),
        told: Plan | None = None,
        limit_bytes: int = 4096,
    ) -> Finished:
        """The next round, not yet appended; of a whole one, with the ids of all files in its
        picture. `large` are files in parts, each a segment."""
        new = {*(files or {}), *(large or {})}
        number = self.newest.number + 1 if self.newest else 1
        round_id = f"{self.cluster}-{number}-{self.op}"
        async with Round(
            self.chain, self.newest, round_id=round_id, limit_bytes=limit_bytes
        ) as round_:
            for id_, data in (files or {}).items():
                await round_.add_file(id_, data)
            for id_, parts in (large or {}).items():
                await self._add_large(round_, id_, parts)
            if whole:
                ids = sorted({*self.rows, *new})
                await round_.add(Stream.PICTURE, bytes(str(ids), "ascii"))
                for segment in self.segments.values():
                    every = chain.from_iterable(self.rows.values())
                    rows = [row for row in every if row.segment == segment.number]
                    if rows:
                        round_.name_segment(segment, rows)
            else:
                await round_.add(Stream.JOURNAL, bytes(str(sorted(new)), "ascii"))
            return await round_.finish(
                op=self.op + 1,
                time_ms=1000 * (self.op + 1),
                last_file=max((self.newest.last_file if self.newest else 0, *new)),
                whole=whole,
                dropped=drop,
                points=told.points if told else () if whole and self.newest is None else None,
                doomed=told.doomed if told else (),
            )

    async def _add_large(self, round_: Round, id_: int, parts: Sequence[bytes]) -> None:
        at = 0
        for n, data in enumerate(parts, 1):
            number, name = round_.reserve()
            stretch = Stretch(id_, data, at, n < len(parts))
            segment, rows = await upload(
                self.store, name=name, number=number, files=[stretch], cipher=self.cipher
            )
            round_.name_segment(segment, rows)
            at += len(data)

    async def write(self, *args: object, **settings: object) -> Manifest:
        """The next round, appended."""
        finished = await self.pack(*args, **settings)  # type: ignore[arg-type]
        appended = await self.chain.append(finished)
        assert appended.mine
        self.landed(appended.manifest, finished.rows)
        return appended.manifest

    def landed(self, manifest: Manifest, rows: Sequence[FileRow]) -> None:
        self.newest, self.op = manifest, manifest.op
        self.learn(rows)
        self.segments.update((row.number, row) for row in manifest.rows)

    def learn(self, rows: Iterable[FileRow]) -> None:
        for id_, own in groupby(rows, key=lambda row: row.id):
            self.rows[id_] = list(own)

    async def read(self, id_: int, size: int, start: int = 0, end: int | None = None) -> bytes:
        found: list[memoryview] = []
        for row in self.rows[id_]:
            found += await read.read_file(
                self.store, self.segments[row.segment].name, row.place, id_=id_, size=size,
                start=start, end=end, cipher=self.cipher,
            )  # fmt: skip
        return b"".join(found)


async def said(chain: Chain, manifest: Manifest) -> list[str]:
    """What a restore of `manifest` hears, in order."""
    heard = []
    async for step in restore.contents(chain, manifest):
        if step.picture is not None:
            heard.append(f"picture {step.picture.decode()}")
        if step.journal is not None:
            heard.append(f"journal {step.journal.decode()}")
        if step.rows is not None:
            heard.append(f"rows {sorted(row.id for row in step.rows)}")
    return heard
