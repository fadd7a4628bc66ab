"""Every bound that the benchmark measures, and whether a run meets it. Pure."""

from collections.abc import Iterator

from msgspec import Struct

from diskless.bench import works
from diskless.bench.figures import Result, Series, ratios, spread_of

MAIN = works.diskless(works.MAIN_SHAPE)
ALONE = "alone"
TURN_MS_MAX = 20.0
FLAT = 1.25
"""What counts as flat."""
GROWN = 1.15
"""What a commit and a MiB may cost more with four times the agents."""


class Of(Struct, frozen=True, kw_only=True):
    """Which series: what was done, by whom, at which size, beside which cluster."""

    work: str
    system: str = MAIN
    size: float | None = None
    beside: str | None = None

    def find(self, result: Result) -> Series | None:
        return result.find(self.work, self.system, size=self.size, beside=self.beside)


class Bound(Struct, frozen=True, kw_only=True):
    """A figure, or the ratio of two, and how small or large it must be."""

    topic: str
    title: str
    figure: Of
    per: Of | None = None
    factor: float = 1.0
    most: float | None = None
    least: float | None = None
    worst: bool = False
    """Judged by its worst sample, not by the median."""

    @property
    def text(self) -> str:
        return f"≤ {self.most:.4g}" if self.most is not None else f"≥ {self.least:.4g}"


class Judged(Struct, frozen=True, kw_only=True):
    bound: Bound
    value: float
    low: float
    high: float
    met: bool


def judge(result: Result) -> list[Judged]:
    """All bounds whose figures this run has, topic by topic."""
    judged = (_judge(bound, result) for bound in all_bounds(result))
    return [entry for entry in judged if entry is not None]


def _judge(bound: Bound, result: Result) -> Judged | None:
    above = bound.figure.find(result)
    below = bound.per.find(result) if bound.per else None
    if above is None or (bound.per and below is None):
        return None
    samples = ratios(above.samples, below.samples) if below else above.samples
    values = [bound.factor * sample for sample in samples]
    spread = spread_of(values)
    if bound.worst:
        value = max(values) if bound.most is not None else min(values)
    else:
        value = spread.median
    met = value <= bound.most if bound.most is not None else value >= (bound.least or 0.0)
    return Judged(bound=bound, value=value, low=spread.low, high=spread.high, met=met)


def all_bounds(result: Result) -> Iterator[Bound]:
    yield from STORE
    yield from NAMESPACE
    yield from SPARK
    yield from HEALING
    yield from _restarts(result)
    yield from FAST
    yield from _checkpoints(result)
    yield from _flat(result)
    yield from _turns(result)
    yield from _history(result)
    yield from IDENTITY
    yield from _tier(result)
    yield from BARRIER
    yield from EVICTION
    yield from ROLLBACK
    yield from SEEN
    yield from _scale(result)


def _alone(work: str, system: str = MAIN) -> Of:
    return Of(work=work, system=system, beside=ALONE)


def _beside(work: str, system: str = MAIN) -> Of:
    return Of(work=work, system=system, beside=works.MAIN_SHAPE)


STORE = (
    Bound(
        topic="bulk",
        title="codec of PyECLib alone, 1 MiB at 4+2",
        figure=Of(work=works.ENCODE),
        per=Of(work=works.ENCODE, system=f"{works.ISAL} {works.MAIN_SHAPE}"),
        least=0.9,
    ),
    Bound(
        topic="bulk",
        title="256 MiB write of (plain stream / 1.5)",
        figure=_alone(works.SINGLE_WRITE),
        per=_alone(works.STREAM, works.PLAIN),
        factor=1.5,
        least=0.5,
    ),
    Bound(
        topic="bulk",
        title="256 MiB read of plain stream",
        figure=_alone(works.SINGLE_READ),
        per=_alone(works.STREAM, works.PLAIN),
        least=0.5,
    ),
    Bound(
        topic="bulk",
        title="256 MiB read with 2 agents gone, of healthy",
        figure=_alone(works.SINGLE_READ_DOWN),
        per=_alone(works.SINGLE_READ),
        least=0.6,
    ),
    Bound(
        topic="bulk",
        title="16 writers of one, 20 KiB files, not inline",
        figure=_alone(works.SMALL_WRITERS),
        per=_alone(works.SMALL_ONE_WRITER),
        least=5.0,
    ),
    Bound(
        topic="bulk",
        title="gRPC messages for each of those files",
        figure=_alone(works.SMALL_MESSAGES),
        most=2.0,
    ),
    *(
        Bound(
            topic="bulk",
            title=f"stored for each logical byte, {kib:g} KiB files",
            figure=Of(work=works.STORED, size=kib, beside=ALONE),
            most=1.05 * 1.5,
        )
        for kib in (64.0, 300.0, 5120.0)
    ),
)

NAMESPACE = (
    Bound(
        topic="namespace",
        title="serial tiny put of a plain unary call",
        figure=_alone(works.TINY_SERIAL),
        per=_alone(works.UNARY, works.PLAIN),
        most=2.5,
    ),
    Bound(
        topic="namespace",
        title="rate of 32 tiny putters of one",
        figure=_alone(works.TINY_SERIAL),
        per=_alone(works.TINY_MANY),
        least=6.0,
    ),
    *(
        Bound(
            topic="namespace",
            title=f"{work} of a serial tiny put",
            figure=_alone(work),
            per=_alone(works.TINY_SERIAL),
            most=0.25,
        )
        for work in (works.STAT, works.LIST)
    ),
    Bound(
        topic="namespace",
        title="worst gap of leader kills, in failure timeouts",
        figure=_alone(works.GAP),
        most=2.0,
        worst=True,
    ),
    Bound(topic="namespace", title=works.LOST, figure=_alone(works.LOST), most=0.0),
)


def _of_disk(work: str) -> tuple[Of, Of]:
    return _beside(work), _beside(work, works.DISK)


def _of_file(topic: str, title: str, work: str, most: float) -> Bound:
    figure, per = _of_disk(work)
    return Bound(topic=topic, title=title, figure=figure, per=per, most=most)


SPARK = (
    _of_file(
        "spark",
        "checkpoint of file://, HDFS-backed, 8 partitions",
        works.checkpoint("hdfs-8"),
        0.25,
    ),
    _of_file("spark", "whole trigger of file://, the same", works.trigger("hdfs-8"), 0.85),
    _of_file(
        "spark", "checkpoint of file://, RocksDB changelog, 8", works.checkpoint("rocksdb-8"), 0.25
    ),
    _of_file("spark", "checkpoint of file://, HDFS-backed, 50", works.checkpoint("hdfs-50"), 0.5),
    Bound(
        topic="spark",
        title=works.SPARK_FILE_COMMANDS,
        figure=_beside(works.SPARK_FILE_COMMANDS),
        most=1.0,
        worst=True,
    ),
)

HEALING = (
    Bound(
        topic="healing",
        title="rebuild of bulk write, under commits",
        figure=Of(work=works.REPAIR_RATE),
        per=Of(work=works.REPAIR_WRITE),
        least=0.5,
    ),
    Bound(
        topic="healing",
        title="median commit during repair of healthy",
        figure=Of(work=works.REPAIR_COMMIT),
        per=Of(work=works.REPAIR_HEALTHY),
        most=3.0,
    ),
    Bound(
        topic="healing",
        title="kill to next batch, of 2 batches + 2 timeouts, worst",
        figure=Of(work=works.AFTER_KILL),
        per=Of(work=works.AFTER_KILL_BOUND),
        most=1.0,
        worst=True,
    ),
)


def _restarts(result: Result) -> Iterator[Bound]:
    for provider in ("hdfs", "rocksdb"):
        work = works.restart(provider)
        for size in _sizes(result, work):
            yield Bound(
                topic="healing",
                title=f"query restarted, of file://, {size:g} MB of {provider} state",
                figure=Of(work=work, size=size),
                per=Of(work=work, system=works.DISK, size=size),
                most=1.15,
            )


FAST = (
    Bound(
        topic="others",
        title="serial tiny commit of Redis WAIT 2",
        figure=_beside(works.TINY_SERIAL),
        per=_beside(works.TINY_SERIAL, works.REDIS),
        most=3.0,
    ),
    Bound(
        topic="others",
        title="tiny commit on file:// through Spark, of diskless",
        figure=_beside(works.SPARK_COMMIT, works.DISK),
        per=_beside(works.SPARK_COMMIT),
        least=8.0,
    ),
    Bound(
        topic="others",
        title="burst of 200 × 20 KiB of Redis",
        figure=_beside(works.BURST),
        per=_beside(works.BURST, works.REDIS),
        most=1.5,
    ),
    Bound(
        topic="others",
        title="64 MiB write of Redis with two replicas",
        figure=_beside(works.BULK_WRITE),
        per=_beside(works.BULK_WRITE, works.REDIS),
        least=1.0,
    ),
    Bound(
        topic="others",
        title="memory for each logical byte, of three copies",
        figure=_beside(works.MEMORY),
        per=_beside(works.MEMORY, works.REDIS),
        most=0.55,
    ),
    Bound(
        topic="others",
        title="64 MiB read with k down, of healthy",
        figure=_beside(works.BULK_READ_DOWN),
        per=_beside(works.BULK_READ),
        least=0.6,
    ),
)


def _checkpoints(result: Result) -> Iterator[Bound]:
    prefix = works.checkpoint("")
    setups = dict.fromkeys(
        entry.work.removeprefix(prefix) for entry in result.series if entry.work.startswith(prefix)
    )
    for setup in setups:
        yield _of_file("others", f"checkpoint of file://, {setup}", works.checkpoint(setup), 0.15)


def _flat(result: Result) -> Iterator[Bound]:
    """The largest namespace beside the smallest."""
    for work in (
        works.GROWN_COMMIT,
        works.GROWN_COMMIT_CPU,
        works.GROWN_STAT,
        works.GROWN_LIST,
        works.GROWN_MEMORY,
    ):
        yield from _most_of_least(result, "others", work, FLAT)
    for work in (works.AGENTS_COMMIT_CPU, works.AGENTS_WRITE_CPU):
        yield from _most_of_least(result, "others", work, GROWN)


def _scale(result: Result) -> Iterator[Bound]:
    """A leader's work grows with agents and clients, and no faster."""
    for work in (works.SCALE_IDLE_EACH, works.SCALE_COMMIT_MESSAGES):
        yield from _most_of_least(result, "scale", work, FLAT, of=works.SIMULATED)


def _most_of_least(
    result: Result, topic: str, work: str, most: float, *, of: str = MAIN
) -> Iterator[Bound]:
    """A work at its largest size beside the smallest."""
    sizes = _sizes(result, work)
    if len(sizes) > 1:
        yield Bound(
            topic=topic,
            title=f"{work}: {max(sizes):,.0f} of {min(sizes):,.0f}",
            figure=Of(work=work, system=of, size=max(sizes)),
            per=Of(work=work, system=of, size=min(sizes)),
            most=most,
        )


def _turns(result: Result) -> Iterator[Bound]:
    """No turn of an event loop may keep a leader from its lease."""
    for work in dict.fromkeys(e.work for e in result.series if e.work.startswith(works.TURN)):
        for size in _sizes(result, work):
            yield Bound(
                topic="turns",
                title=f"{work}, {size:,.0f} stripes, ms",
                figure=Of(work=work, size=size),
                most=TURN_MS_MAX,
                worst=True,
            )


def _history(result: Result) -> Iterator[Bound]:
    for work in (works.HISTORY_SNAPSHOT, works.HISTORY_CLONE, works.HISTORY_ROLLBACK):
        sizes = _sizes(result, work)
        if not sizes:
            continue
        large = Of(work=work, size=max(sizes))
        yield Bound(
            topic="history",
            title=f"{work}: {max(sizes):,.0f}, of a tiny commit",
            figure=large,
            per=Of(work=works.HISTORY_COMMIT),
            most=5.0,
        )
        yield Bound(
            topic="history",
            title=f"{work}: {max(sizes):,.0f} of {min(sizes):,.0f}",
            figure=large,
            per=Of(work=work, size=min(sizes)),
            most=1.25,
        )
    for size in _sizes(result, works.HISTORY_BYTES):
        yield Bound(
            topic="history",
            title=f"{works.HISTORY_BYTES}, {size:,.0f} files",
            figure=Of(work=works.HISTORY_BYTES, size=size),
            most=0.0,
        )
    yield Bound(
        topic="history",
        title="read below .snapshot of the same at its path",
        figure=Of(work=works.HISTORY_READ_PAST),
        per=Of(work=works.HISTORY_READ),
        most=1.1,
    )
    yield Bound(
        topic="history",
        title="CPU of a commit with a snapshot every second, of one without",
        figure=Of(work=works.HISTORY_CPU_BESIDE),
        per=Of(work=works.HISTORY_CPU),
        most=1.1,
    )


def _sizes(result: Result, work: str) -> list[float]:
    return sorted({e.size for e in result.series if e.work == work and e.size is not None})


IDENTITY = (
    Bound(
        topic="identity",
        title="CPU of a commit with TLS, of one without",
        figure=Of(work=works.IDENTITY_COMMIT_TLS),
        per=Of(work=works.IDENTITY_COMMIT),
        most=1.15,
    ),
    *(
        Bound(topic="identity", title=f"{work}, ms", figure=Of(work=work), most=1.6)
        for work in (works.IDENTITY_WRITE_MORE, works.IDENTITY_READ_MORE)
    ),
    *(
        Bound(topic="identity", title=f"{work}, ms", figure=Of(work=work), most=5.0)
        for work in (works.IDENTITY_OPEN, works.IDENTITY_OPEN_TLS)
    ),
)


def _tier(result: Result) -> Iterator[Bound]:
    """Of the places that the run had."""
    for place in ("file", "s3"):
        figures = (works.tier_sync, works.tier_batch, works.tier_requests)
        if any(result.find(work(place), MAIN) is not None for work in figures):
            yield from _tier_costs(place)
    for work, title in (
        (works.tier_written, "bulk write until it is in"),
        (works.tier_drain, "bulk brought to"),
    ):
        yield Bound(
            topic="tier",
            title=f"{title} file://, of what is written without a tier",
            figure=Of(work=work("file")),
            per=Of(work=works.TIER_WRITE),
            least=0.5,
        )
        yield Bound(
            topic="tier",
            title=f"{title} S3, of what the library alone puts",
            figure=Of(work=work("s3")),
            per=Of(work=works.TIER_LIBRARY),
            least=0.8,
        )
    yield Bound(
        topic="tier",
        title="query restarted after a cold start, of a healthy cluster",
        figure=Of(work=works.TIER_RESTART_COLD),
        per=Of(work=works.TIER_RESTART_WARM),
        most=1.5,
    )
    yield Bound(
        topic="tier",
        title=f"{works.TIER_FIRST_BYTE}, s",
        figure=Of(work=works.TIER_FIRST_BYTE),
        most=2.0,
        worst=True,
    )


def _tier_costs(place: str) -> Iterator[Bound]:
    yield Bound(
        topic="tier",
        title=f"CPU of a batch with a tier in {place}, of one without",
        figure=Of(work=works.tier_batch(place)),
        per=Of(work=works.tier_batch("none")),
        most=1.10,
    )
    yield Bound(
        topic="tier",
        title=f"{works.tier_lag(place)}, s",
        figure=Of(work=works.tier_lag(place)),
        most=1.0,
        worst=True,
    )
    yield Bound(
        topic="tier",
        title=works.tier_requests(place),
        figure=Of(work=works.tier_requests(place)),
        most=1 / 20,
    )
    yield Bound(
        topic="tier",
        title=f"sync commit of 1 KiB to {place}, of a plain one and a create",
        figure=Of(work=works.tier_sync(place)),
        per=Of(work=works.tier_sync_least(place)),
        most=2.0,
    )


BARRIER = (
    Bound(
        topic="barrier",
        title="trigger with barrier of async, hdfs-8, file://",
        figure=Of(work=works.BARRIER_TRIGGER, beside=works.FILE_TIER),
        per=Of(work=works.ASYNC_TRIGGER, beside=works.FILE_TIER),
        most=1.15,
    ),
)

EVICTION = (
    Bound(
        topic="eviction",
        title="memory of a checkpoint with 100 batches, of which two are kept there",
        figure=Of(work=works.EVICTION_MEMORY_KEPT),
        per=Of(work=works.EVICTION_MEMORY),
        most=0.2,
    ),
    Bound(
        topic="eviction",
        title="what a restart reads then, CPU",
        figure=Of(work=works.EVICTION_RESTART_KEPT),
        per=Of(work=works.EVICTION_RESTART),
        most=1.1,
    ),
    Bound(
        topic="eviction",
        title="64 MiB evicted file, of what the library alone reads",
        figure=Of(work=works.EVICTION_READ),
        per=Of(work=works.EVICTION_LIBRARY, system=works.LIBRARY),
        least=0.8,
    ),
    Bound(
        topic="eviction",
        title="bulk writing through eviction, of the rate of the drain",
        figure=Of(work=works.EVICTION_BULK),
        per=Of(work=works.EVICTION_DRAIN),
        least=0.8,
    ),
)

ROLLBACK = (
    Bound(
        topic="rollback",
        title=f"{works.ROLLBACK_S}, s",
        figure=Of(work=works.ROLLBACK_S),
        most=1.0,
    ),
    Bound(
        topic="rollback",
        title=works.ROLLBACK_BYTES,
        figure=Of(work=works.ROLLBACK_BYTES),
        most=0.0,
    ),
    Bound(
        topic="rollback",
        title="restart of a query after a rollback, of any restart",
        figure=Of(work=works.ROLLBACK_RESTART),
        per=Of(work=works.ROLLBACK_PLAIN_RESTART),
        most=1.15,
    ),
    Bound(
        topic="rollback",
        title="CPU of a query's commit with its lease, of one without",
        figure=Of(work=works.ROLLBACK_LEASED),
        per=Of(work=works.ROLLBACK_UNLEASED),
        most=1.05,
    ),
)

SEEN = (
    Bound(
        topic="seen",
        title="CPU of a commit with metrics and the page, of one without",
        figure=Of(work=works.SEEN_COMMIT_SHOWN),
        per=Of(work=works.SEEN_COMMIT),
        most=1.03,
    ),
    Bound(
        topic="seen",
        title="CPU of a small query's batch with the listener, of one without",
        figure=Of(work=works.SEEN_BATCH_NOTED),
        per=Of(work=works.SEEN_BATCH),
        most=1.05,
    ),
    Bound(
        topic="seen",
        title="SIGKILL to its being shown in a browser, the worst, s",
        figure=Of(work=works.SEEN_KILL_SHOWN),
        most=1.0,
        worst=True,
    ),
    *(
        Bound(topic="seen", title=title, figure=Of(work=work), most=most)
        for title, work, most in (
            ("metrics and page add to an idle agent, part of a core", works.SEEN_IDLE_MORE, 0.001),
            ("CPU of a scrape, ms", works.SEEN_SCRAPE, 2.0),
            ("SIGKILL to its being shown, s", works.SEEN_KILL, 1.0),
            ("100 watching streams, part of a core", works.SEEN_WATCHERS, 0.05),
            ("first view of the page, KB", works.SEEN_FIRST_VIEW, 300.0),
            ("CPU of a note of a batch, all processes, ms", works.SEEN_NOTE, 1.0),
        )
    ),
)
