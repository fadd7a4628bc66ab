"""A tier written by hand: rounds of given files, for tests that need one of a certain shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diskless.identity.cipher import Cipher
from diskless.tier import read, restore
from diskless.tier.chain import Chain
from diskless.tier.collect import Plan
from diskless.tier.manifest import FileRow, Manifest, SegmentRow, Stream
from diskless.tier.round import Finished, Round
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
    rows: dict[int, FileRow] = field(default_factory=dict)
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
        whole: bool = False,
        drop: Sequence[int] = (),
        told: Plan | None = None,
        limit_bytes: int = 4096,
    ) -> Finished:
        """The next round, not yet appended; of a whole one, with the ids of all files in its
        picture."""
        number = self.newest.number + 1 if self.newest else 1
        round_id = f"{self.cluster}-{number}-{self.op}"
        async with Round(
            self.chain, self.newest, round_id=round_id, limit_bytes=limit_bytes
        ) as round_:
            for id_, data in (files or {}).items():
                await round_.add_file(id_, data)
            if whole:
                ids = sorted({*self.rows, *(files or {})})
                await round_.add(Stream.PICTURE, bytes(str(ids), "ascii"))
                for segment in self.segments.values():
                    rows = [row for row in self.rows.values() if row.segment == segment.number]
                    if rows:
                        round_.name_segment(segment, rows)
            else:
                await round_.add(Stream.JOURNAL, bytes(str(sorted(files or {})), "ascii"))
            return await round_.finish(
                op=self.op + 1,
                time_ms=1000 * (self.op + 1),
                last_file=max((self.newest.last_file if self.newest else 0, *(files or {}))),
                whole=whole,
                dropped=drop,
                points=told.points if told else () if whole and self.newest is None else None,
                doomed=told.doomed if told else (),
            )

    async def write(self, *args: object, **settings: object) -> Manifest:
        """The next round, appended."""
        finished = await self.pack(*args, **settings)  # type: ignore[arg-type]
        appended = await self.chain.append(finished)
        assert appended.mine
        self.landed(appended.manifest, finished.rows)
        return appended.manifest

    def landed(self, manifest: Manifest, rows: Sequence[FileRow]) -> None:
        self.newest, self.op = manifest, manifest.op
        self.rows.update((row.id, row) for row in rows)
        self.segments.update((row.number, row) for row in manifest.rows)

    async def read(self, id_: int, size: int, start: int = 0, end: int | None = None) -> bytes:
        row = self.rows[id_]
        name = self.segments[row.segment].name
        return await read.read_file(
            self.store, name, row.place, id_=id_, size=size, start=start, end=end,
            cipher=self.cipher,
        )  # fmt: skip


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
