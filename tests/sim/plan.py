"""What a seed decides before a schedule begins: sizes, and which faults, how often.

Swarm testing: each schedule has some kinds of faults and not others, because a world
in which everything breaks all the time never gets far enough to break interestingly.
"""

from dataclasses import dataclass
from random import Random

from diskless.namespace.replication import Limits, Timing

TIMING = Timing(failure_timeout_ms=400, lease_ms=200, heartbeat_ms=50, slow_ms=20, drift_max=0.02)


@dataclass(kw_only=True)
class Plan:
    k: int
    timing: Timing
    limits: Limits
    clients: int
    think_ms: float
    patience_ms: float
    tick_ms: float
    latency_ms: float
    duration_ms: float
    drop: float
    late: float
    twice: float
    pause_in_read: float
    codec: bool
    faults: tuple[str, ...]
    every_ms: float
    story: str | None
    liars: tuple[int, ...]
    """Slots whose wall clocks are wrong now and then, by up to a day."""
    churn: bool
    """Whether leaders come and go at the end, while nothing else happens."""
    small_nodes: bool
    """Whether directories of a few names are trees of several nodes."""
    queries: bool
    """Whether most of it is about checkpoints, with a tier and `barrier` from the beginning."""
    ignore_sessions: bool = False

    @property
    def voters(self) -> int:
        return 2 * self.k + 1


FAULTS = (
    "crash",
    "crash leader",
    "crash recovering",
    "crash after ack",
    "crash after vote",
    "crash new leader",
    "pause",
    "pause leader",
    "split",
    "isolate",
    "isolate leader",
    "one way",
    "suspect",
    "double",
    "double recovering",
    "crash double",
    "stop",
    "stop leader",
    "slow",
    "slow leader",
    "end leader",
)
STORIES = (
    "amnesia",
    "stale lease",
    "stale leader",
    "minority",
    "hasty",
    "rotate",
    "third vote",
    "two lives",
    "late life",
    "double promise",
    "stopped",
    "slow leader",
    "busy leader",
    "announced end",
)
UNDISTURBED = ("slow leader", "busy leader", "announced end")
"""Stories of a network that loses nothing: what must happen then is known."""


def make_plan(random: Random, story: str | None = None) -> Plan:
    """`story` makes it a schedule of that story, whatever the seed says."""
    k = 1 if random.random() < 0.6 else 2
    faulty = random.random() < 0.7
    told = random.choice(STORIES) if random.random() < 0.3 else None
    story = story or told
    if story == "third vote":
        k = 2
    faults = () if story else tuple(random.sample(FAULTS, random.randint(1, 6)))
    small = random.random() < 0.5
    liars = random.sample(range(2 * k + 1), random.choice((0, 1, 1, 2 * k + 1)))
    plan = Plan(
        k=k,
        timing=TIMING,
        limits=Limits(
            rounds_in_flight_max=random.choice((1, 2, 4)),
            batch_bytes_max=random.choice((100, 300, 1 << 20)),
            log_entries_max=random.choice((2, 5, 12)) if small else 1000,
            backlog_entries_max=random.choice((2, 1000)),
            apply_commands_max=random.choice((1, 256)),
            gather_ms_max=random.choice((1, 5)),
        ),
        clients=random.randint(1, 4),
        think_ms=random.choice((10, 40, 120)),
        patience_ms=random.choice((30, 100, 300)),
        tick_ms=random.choice((10, 20)),
        latency_ms=random.choice((1, 3, 10)),
        duration_ms=random.uniform(1200, 3000),
        drop=random.choice((0, 0.01, 0.1)) if faulty else 0,
        late=random.choice((0, 0.02, 0.1)) if faulty else 0,
        twice=random.choice((0, 0.02, 0.2)) if faulty else 0,
        pause_in_read=random.choice((0, 0, 0.05)),
        codec=random.random() < 0.1,
        faults=faults,
        every_ms=random.choice((60, 150, 400)),
        story=story,
        liars=tuple(liars),
        churn=random.random() < 0.2,
        small_nodes=random.random() < 0.5,
        queries=random.random() < 0.4,
    )
    if story in UNDISTURBED:
        plan.drop = plan.late = plan.twice = plan.pause_in_read = 0
        plan.latency_ms = 1
        plan.duration_ms = 2000 if story == "announced end" else 6000
    return plan
