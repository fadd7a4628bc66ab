"""How much each part of the benchmark does: the short run, the full run, and any of it changed.

Every number that decides how long a part takes is here, so that a test can make it tiny and
a patient user can make it large (`diskless bench run --set tiny_puts=2000`).
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from diskless.errors import BadRequest

PARTS = (
    "limits", "store", "single", "commits", "spark", "recovery", "repair", "growth", "history",
    "identity", "tier", "barrier", "eviction", "rollback", "seen", "scale",
)  # fmt: skip
"""Of a run, in their order: modules of this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    repetitions: int = 3
    """How often every system takes its turn at the same work."""
    shapes: tuple[str, ...] = ("2+1", "4+2", "8+3")

    tiny_bytes: int = 1024
    tiny_puts: int = 200
    concurrent_puts: int = 640
    burst_files: int = 200
    burst_bytes: int = 20 * 1024
    bursts: int = 5
    bulk_mib: int = 64
    bulk_files: int = 2
    single_mib: int = 256
    """One large file into 4+2 alone, beside the plain stream."""
    memory_mib: int = 256
    leader_kills: int = 10
    repair_mib: int = 1024

    spark_systems: tuple[str, ...] = ("4+2",)
    """The shapes whose checkpoints Spark writes, beside disk and tmpfs."""
    spark_setups: tuple[str, ...] = ("hdfs-8", "rocksdb-8", "hdfs-50")
    spark_other_setups: tuple[str, ...] = ("hdfs-8",)
    """For the shapes other than 4+2: what they add is seen there, and 200 partitions take long."""
    spark_turns: int = 3
    spark_warm: int = 2
    spark_batches: int = 10
    """Measured in each turn of hdfs-8; three turns make the 30 that its bound asks for."""
    spark_more_batches: int = 4
    """The same of all other set-ups."""
    spark_commits: int = 20

    agent_kills: int = 3
    restart_mb: tuple[float, ...] = (1, 100)
    restart_providers: tuple[str, ...] = ("hdfs",)
    restarts: int = 2
    rebuild_mb: tuple[float, ...] = (1, 100)

    history_files: int = 10_000
    history_mib: int = 1024
    history_batches: int = 100
    """Snapshots of a running query's checkpoint, one after each batch; 0 leaves it out."""

    tier_places: tuple[str, ...] = ("none", "file", "s3")
    """Whose clusters take turns; one alone has no ratios."""
    tier_turns: int = 2
    tier_batches: int = 8
    """Of a turn of the query; turns 0 leave it out."""
    tier_many_batches: int = 8
    """Of the query with 50 partitions, whose requests are counted; 0 leaves it out."""
    tier_state_mb: int = 100
    """Of the query that is restarted after a cold start; 0 leaves it out."""
    evicted_files: int = 3
    """Of 64 MiB, each read once."""
    evicted_batches: int = 100
    evicted_bulk_mib: int = 768
    """Written in bulk, through memory for a part of it."""
    rollback_batches: int = 100
    rollback_mib: int = 1024
    rollback_commits: int = 4000
    rollback_state_mb: int = 20
    """Of the query that is restarted after a rollback; 0 leaves it out."""

    noted_turns: int = 6
    """With Spark's listener and without; 0 leaves it out."""
    noted_batches: int = 60
    """Small ones, in each turn."""

    growth_state_mb: tuple[float, ...] = ()
    growth_agents: tuple[int, ...] = ()
    growth_files: tuple[int, ...] = (1_000, 5_000, 20_000)
    turn_stripes: int = 25_000
    turn_files: int = 100_000
    """Of the made-up state whose longest turns are measured."""

    scale_agents: tuple[int, ...] = (16, 256)
    scale_clients: tuple[int, ...] = (100, 10_000)
    """Of the simulated leader; clients are there with the most agents."""
    scale_stripes: int = 2_000
    scale_s: int = 3
    """Of made-up time that each state of it is looked at."""
    scale_rate: int = 1000
    """Of its clients' commits, and of files that they open, in a second of that."""


SHORT = Sizes()
FULL = Sizes(
    repetitions=7,
    tiny_puts=1000,
    concurrent_puts=6400,
    bursts=20,
    bulk_files=8,
    memory_mib=512,
    spark_systems=("2+1", "4+2", "8+3"),
    spark_setups=("hdfs-8", "rocksdb-8", "hdfs-50", "rocksdb-50", "hdfs-200", "rocksdb-200"),
    spark_other_setups=("hdfs-8", "rocksdb-8"),
    spark_more_batches=10,
    spark_commits=100,
    agent_kills=10,
    restart_mb=(1, 10, 100, 600),
    restart_providers=("hdfs", "rocksdb"),
    restarts=3,
    rebuild_mb=(1, 10, 100, 600),
    tier_turns=5,
    tier_batches=20,
    tier_many_batches=20,
    tier_state_mb=1000,
    noted_turns=10,
    noted_batches=200,
    growth_state_mb=(1, 10, 100, 1000),
    growth_agents=(6, 12, 18, 24),
    growth_files=(1_000, 10_000, 100_000, 1_000_000),
    turn_stripes=250_000,
    turn_files=1_000_000,
    scale_agents=(16, 64, 256),
    scale_clients=(100, 1_000, 10_000),
    scale_stripes=20_000,
    scale_s=10,
)


def changed(sizes: Sizes, settings: tuple[str, ...]) -> Sizes:
    """With `name=value` for each of the settings; lists have commas. Raises BadRequest."""
    kinds = {entry.name: getattr(sizes, entry.name) for entry in fields(sizes)}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in kinds:
            raise BadRequest(
                f"--set {setting!r}: NAME=VALUE, where NAME is one of {', '.join(kinds)}"
            )
        try:
            sizes = replace(sizes, **{name: _parse(getattr(FULL, name), text)})
        except ValueError as error:
            raise BadRequest(f"--set {setting!r}: {error}") from None
    return sizes


def _parse(like: Any, text: str) -> Any:
    if not isinstance(like, tuple):
        return int(text)
    words = [word for word in text.split(",") if word]
    return tuple(
        type(like[0])(word) if isinstance(like[0], str) else _number(word) for word in words
    )


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def to_dict(sizes: Sizes) -> dict[str, Any]:
    """As JSON has it."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(sizes).items()
    }
