"""The nouns that all parts share: stripes, extents, file records, agents, the cluster's status.

All are immutable, cheap (msgspec structs) and mean the same in the log, on gRPC
and in memory. Nothing here does I/O or knows where it is stored.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from diskless.errors import BadRequest

PRIORITIES = range(10)
PRIORITY_DEFAULT = 5
"""Of paths that ask for none; the highest is looked after first."""


def slot_name(slot: int) -> str:
    return f"agent-{slot}"


def parse_slot(text: str) -> int:
    """The number of a slot named `agent-3` or `3`. Raises ValueError."""
    number = text.removeprefix("agent-")
    if not number.isdecimal():
        raise ValueError(f"{text!r} is not a slot: write agent-3 or 3")
    return int(number)


def check_slots(slots: Sequence[int], *, agents: int) -> None:
    """Raises BadRequest for a slot that a cluster of so many agents does not have, and for one
    that is named twice."""
    for slot in slots:
        if not 0 <= slot < agents:
            raise BadRequest(
                f"there is no {slot_name(slot)}: this cluster has {slot_name(0)} to "
                f"{slot_name(agents - 1)}"
            )
    if len(set(slots)) < len(slots):
        raise BadRequest("a slot is named twice")


def format_address(host: str, port: int) -> str:
    """host:port; an IPv6 address in brackets, as gRPC, Ray and clients want it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Event(Struct, frozen=True):
    """A command of the namespace's log, in words."""

    op: int
    """Its place in the log; commands that were agreed on together share one."""
    time_ms: int
    kind: str
    """put, move, repair, reap, doubt, session, mkdir, rename, delete, snapshot, clone, rollback,
    fence, up, down, slow, drain, limit, token, policy or tier; in an audit file also gap, lost
    or refused."""
    text: str
    who: str = ""
    """The principal who asked for it; "" for what the cluster does by itself."""
    paths: tuple[str, ...] = ()
    """What it is about: of a put of several files the first, and the directories that the others
    are in. "/" stands for all that are too many to name."""

    def concerns(self, path: str) -> bool:
        """Whether it is about something at, below or above a path."""
        below = path if path == "/" else f"{path}/"
        return any(
            own == path or own.startswith(below) or path.startswith(own.rstrip("/") + "/")
            for own in self.paths
        )


class Place(Struct, frozen=True, array_like=True, gc=False):
    """Where a shard is: a slot, in one of its lives."""

    slot: int
    incarnation: int


class Extent(Struct, frozen=True, array_like=True, gc=False):
    """A byte range of a stripe's payload."""

    stripe: str
    offset: int
    length: int


ShardName = tuple[str, int]
"""A stripe's id and a shard's index."""


class Stripe(Struct, frozen=True, array_like=True, gc=False):
    """Up to about 1 MiB of payload, coded as m+k shards on as many agents.

    `places[i]` holds shard i; the first `data_shards` hold the payload in order.
    `version` grows with every move of a shard.
    """

    id: str
    data_shards: int
    parity_shards: int
    payload_bytes: int
    places: tuple[Place, ...]
    version: int = 0
    codec: str = "isa_l_rs_cauchy"

    @property
    def shard_bytes(self) -> int:
        """The size of each of its shards."""
        return -(-self.payload_bytes // self.data_shards)


class HeldShard(Struct, frozen=True, array_like=True, gc=False):
    """A shard that an agent has, and the placement that it was stored for.

    `version` is 0 for the shards that a stripe was born with. Whoever moves a shard
    stores it for the version of the stripe that the move would make: so once a stripe
    has reached that version without naming this shard's place, nothing ever will.
    """

    stripe: str
    index: int
    version: int


class StripeId(Struct, frozen=True, gc=False):
    """The parts of a stripe's id: who made it, in which life, and its number there."""

    slot: int
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.slot}.{self.incarnation}.{self.counter}"

    @classmethod
    def parse(cls, text: str) -> "StripeId":
        """Raises BadRequest: ids come from clients too, with uploads they continue with."""
        found = _STRIPE_ID.fullmatch(text)
        if found is None:
            raise BadRequest(f"{text[:80]!r} is not the id of a stripe")
        return cls(*map(int, found.groups()))


_STRIPE_ID = re.compile(r"([0-9]{1,5})\.([0-9]{1,18})\.([0-9]{1,18})")
"""No more digits than all that carries these numbers has room for."""


class FileRecord(Struct, frozen=True, array_like=True, gc=False):
    """What the namespace knows of a file's content.

    `id` is new with every put, so equal ids mean equal bytes; `layout` grows when
    the same bytes move to other stripes. Exactly one of `inline` and `extents`
    holds the content (an empty file is inline). `checksum` is XXH64 of it all.
    """

    id: int
    size: int
    mtime_ms: int
    checksum: int
    inline: bytes | None
    extents: tuple[Extent, ...] = ()
    layout: int = 0
    grade: int = 0
    """What its path asked for of parity and priority when it was written: see `policy.Grade`."""


class AgentInfo(Struct, frozen=True):
    """A member of the cluster, as the namespace records it."""

    slot: int
    incarnation: int
    boot: str
    """Random name of one life of the process, given by itself."""
    address: str
    """host:port of its gRPC door."""
    gateway: str
    """host:port of its TCP door for clients."""
    socket: str
    """Path of its Unix socket, for clients on the same host."""
    host: str
    """Failure domain: agents with the same value die together."""
    node: str
    pid: int
    up: bool = True
    down_ms: int = 0
    """Since when it is down, by the log's elapsed time; 0 while it is up."""
    draining: bool = False
    """It gets no new shards, and those that it has are moved elsewhere."""
    slow: bool = False
    """It answers much later than the others: it is asked last, and new shards go elsewhere."""
    ends_ms: int = 0
    """By the log's elapsed time, when its host is said to end; 0 if nobody says so. Until then it
    gets no new shards while enough others are there, and those that it has are moved elsewhere."""
    notice: str = ""
    """Who said so last, and of when: the same is not heard twice, also after it was taken back."""

    @property
    def leaves(self) -> bool:
        """Whether its shards are moved elsewhere, for whichever reason."""
        return self.draining or self.ends_ms > 0


class TierOptions(Struct, frozen=True, array_like=True):
    """What agents use a tier with. Nothing of it is secret: files are named by their paths, which
    are the same on every host."""

    key: str = ""
    """The file of the key that all is encrypted with; "" if nothing is."""
    credentials: str = ""
    """A file of the store's own variables, beside those of the agents' environment."""
    durability: str = ""
    """What paths ask for that no policy says something about; "" is async."""
    lag_max_s: float = 5.0
    keep: str = ""
    """Which states of the past are kept."""


class LoopLag(Struct, frozen=True):
    """How late an agent's event loop has been in the last half minute or so."""

    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0


class TrafficCounts(Struct, frozen=True):
    """What was done for clients since agents started: it shrinks when one restarts."""

    commits: tuple[int, ...] = ()
    """By how long they took, in the buckets of `agent.counts`."""
    bytes_written: int = 0
    bytes_read: int = 0


class AgentStatus(Struct, frozen=True, kw_only=True):
    """An agent, as the leader reports it; one that has not joined yet has only a name."""

    slot: str
    state: str
    """starting, up, slow, draining, ending or down."""
    pid: int = 0
    node: str = ""
    host: str = ""
    address: str = ""
    incarnation: int = 0
    shards: int = 0
    bytes_used: int = 0
    bytes_max: int = 0
    memory: dict[str, int] = {}
    """The agent's account: bytes by kind. `bytes_used` is the sum without copies, which give way
    as soon as anything else needs the room."""
    http: str = ""
    """Where it serves its metrics; empty if it does not."""
    unsteady: bool = False
    """It went down, restarted or became slow several times in the last ten minutes: new shards
    do not go there while others have room."""
    shards_placed: int = 0
    """Shards that the namespace has there, in whichever life."""
    bytes_placed: int = 0
    """The bytes of these."""
    ends_in_s: float | None = None
    """How long its host has until it ends, by what was announced; below 0 if it should have ended.
    None if nothing is announced."""
    ends_by: str = ""
    """Who announced that."""
    loop_lag: LoopLag = LoopLag()

    def is_there(self) -> bool:
        """Whether it serves, slow, draining or ending as it may be."""
        return self.state in ("up", "slow", "draining", "ending")


class VoterStatus(Struct, frozen=True, kw_only=True):
    slot: str
    role: str
    """leader, follower or gone."""
    lag: int | None
    """Entries of the log that it lacks; None if it is silent or has no memory."""
    clock_skew_ms: int | None = None
    """How far its wall clock is from the median of the voters'; None if that is not known."""


class LogStatus(Struct, frozen=True, kw_only=True):
    op: int = 0
    commit: int = 0
    entries: int = 0
    bytes: int = 0


class StripeCounts(Struct, frozen=True, kw_only=True):
    total: int = 0
    healthy: int = 0
    degraded: int = 0
    lost: int = 0


class RepairStatus(Struct, frozen=True, kw_only=True):
    state: str = "idle"
    """idle, waiting, rebuilding or reshaping."""
    stripes_left: int = 0
    bytes_left: int = 0
    bytes_done: int = 0
    bytes_per_s: int = 0
    eta_s: float | None = None
    waiting: int = 0
    """Stripes about which nothing can be done until an agent is back, or given up."""
    unprotectable: int = 0
    """Stripes that no agent has room for."""
    lost: int = 0
    lost_files: int = 0
    """Files that have bytes in lost stripes: of very many, some thousands."""
    share: float = 0.0
    """The part of the time that it takes while clients are at work, as is chosen now."""
    slower: float | None = None
    """Why: how many times as long as without it clients' commands take; None if that is not known
    yet."""
    at_stake: int = 0
    """Stripes that were lost if all agents ended now whose ends are announced, as of the last look
    at all stripes."""


class BalanceStatus(Struct, frozen=True, kw_only=True):
    """How evenly agents are filled, and what moves to make it so."""

    state: str = "idle"
    """idle; waiting, for agents that are down or for repair; moving; settled: nothing may be moved
    any more, though agents are not equally full."""
    bytes_left: int = 0
    bytes_done: int = 0
    bytes_per_s: int = 0
    eta_s: float | None = None
    mean_share: float = 0.0
    """How full all agents together are, of what clients' data may take."""
    fullest_share: float = 0.0
    emptiest_share: float = 0.0


class UpkeepStatus(Struct, frozen=True, kw_only=True):
    """How fast agents look through what they have, as is chosen now."""

    pace: float = 1.0
    """Times as fast as is set."""
    pace_why: str = ""
    scrub_bytes_per_s: int = 0
    """Of each agent."""
    roll_stripes_per_s: float = 0.0
    """Stripes whose holders the leader asks for them, while a roll is called."""
    thin_s: float = 0.0
    """How far apart looks at all snapshots by policy are, for those that are to go."""
    thin_why: str = ""


class ClassStatus(Struct, frozen=True, kw_only=True):
    """The stripes of one parity: of the cluster's own, or of paths that ask for less."""

    parity_shards: int
    margin: int
    """How many more losses all of them survive; -1 if some are lost, or cannot be read now."""
    stripes: StripeCounts = StripeCounts()


class QuotaStatus(Struct, frozen=True, kw_only=True):
    """A path that may hold only so much."""

    path: str
    bytes_max: int
    bytes_used: int


class CopyStatus(Struct, frozen=True, kw_only=True):
    """Copies of other agents' shards, of all agents: what clients wrote or read there last."""

    bytes_max: int = 0
    """How much they may take; 0 if there are none."""
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    """Ranges of other agents' shards that clients' reads wanted, since agents started: found in
    copies, and not."""
    bytes_hit: int = 0
    bytes_missed: int = 0
    corrupt: int = 0
    """Copies that failed their checksums, and were dropped."""


class TierLag(Struct, frozen=True, kw_only=True):
    """What is acknowledged and not in the tier yet: what would be lost with everything."""

    seconds: float = 0.0
    bytes: int = 0
    commands: int = 0


class HydrationStatus(Struct, frozen=True, kw_only=True):
    """Files whose bytes are in the tier alone, and how they come back."""

    files_left: int = 0
    bytes_left: int = 0
    bytes_done: int = 0
    bytes_per_s: int = 0
    eta_s: float | None = None
    damaged: int = 0
    """Files whose bytes in the tier are not what they were."""


CLOSED = "closed"
"""The tier's state while `down` is under way."""


class DrillStatus(Struct, frozen=True, kw_only=True):
    """What a drill found: a restore that was tried, beside the cluster, and thrown away."""

    sound: bool
    problem: str = ""
    """The first thing that was wrong; there may be more."""
    problems: int = 0
    time_ms: int = 0
    """When its result was taken down, by the log."""
    number: int = 0
    position: int = 0
    """Of the manifest that was restored."""
    full: bool = False
    """Whether every file was read."""
    files: int = 0
    bytes: int = 0
    files_read: int = 0
    bytes_read: int = 0
    took_s: float = 0.0
    serves_s: float = 0.0
    """After which a restored cluster would serve, as long as it took here."""
    whole_s: float = 0.0
    """After which it would have all bytes in memory, at the rate of this drill."""


class EvictionStatus(Struct, frozen=True, kw_only=True):
    """Memory as a cache of the tier."""

    state: str = "idle"
    """idle, evicting, or stuck: memory is full of what the tier has not, and will not have."""
    files: int = 0
    bytes: int = 0
    """That were evicted and are in the tier alone."""
    files_done: int = 0
    bytes_done: int = 0
    """Evicted by this leader."""
    hits: int = 0
    misses: int = 0
    """Reads of clients that found their bytes in memory, and that went to the tier, of all agents
    since they started."""
    hit_rate: float | None = None
    hydration_ms: float | None = None
    """What a read waited for the tier, on average."""


class TierReport(Struct, frozen=True, kw_only=True):
    """The durable tier, as the leader reports it."""

    uri: str
    state: str
    """draining, failing, closed (nothing is changed any more) or superseded."""
    epoch: int = 0
    number: int = 0
    """Of the last manifest."""
    horizon: int = 0
    """The number of the last change that is in the tier."""
    horizon_time_ms: int = 0
    lag_s: float = 0.0
    lag_bytes: int = 0
    lag_commands: int = 0
    lag_max_s: float = 0.0
    distance_s: float = 0.0
    """How far apart rounds begin while nobody waits for one, as is chosen now."""
    distance_why: str = ""
    rounds: int = 0
    """That this leader has made."""
    rounds_failed: int = 0
    """That failed."""
    objects_put: int = 0
    bytes_put: int = 0
    requests: int = 0
    """Of all agents, since they started."""
    last_error: str = ""
    """Why it is behind, or over; empty while rounds succeed."""
    failing_s: float = 0.0
    """For how long they have not."""
    held: int = 0
    """Answers that are held back until they are durable, or what was planned before them is."""
    barriers: int = 0
    """Paths that ask for `durability=barrier`."""
    barrier_paths: list[str] = []
    """Some of them."""
    files_lost: int = 0
    """That could not be read any more when the tier was to have them."""
    hydration: HydrationStatus = HydrationStatus()
    drill: DrillStatus | None = None
    """The last one that was told of."""
    eviction: EvictionStatus = EvictionStatus()


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """The whole cluster as its leader sees it: what `diskless status --json` prints."""

    name: str = ""
    cluster_id: str = ""
    data_shards: int = 0
    parity_shards: int
    leader: str = ""
    margin: int
    """How many more losses everything survives that is to survive k of them, and the namespace
    too. What paths ask less for is told by `classes`, and counts in no promise."""
    margin_hosts: int
    time_ms: int = 0
    """What the voters' wall clocks say, by their median, in Unix milliseconds; 0: not known."""
    view: int = 0
    voters: list[VoterStatus] = []
    log: LogStatus = LogStatus()
    commits_per_s: float = 0.0
    agents: list[AgentStatus]
    unhosted: dict[str, str] = {}
    """What becomes of agents that are down and have lost their hosts."""
    loop_lag: LoopLag = LoopLag()
    """Of the leader."""
    stripes: StripeCounts = StripeCounts()
    repair: RepairStatus = RepairStatus()
    balance: BalanceStatus = BalanceStatus()
    upkeep: UpkeepStatus = UpkeepStatus()
    files: int = 0
    files_unswept: int = 0
    """Deleted with the directories above them, and not taken apart yet: they still hold memory."""
    directories: int = 0
    snapshots: int = 0
    bytes_only_snapshots: int | None = None
    """What no path outside of snapshots leads to, as of the last look; None before the first."""
    bytes_logical: int = 0
    bytes_stored: int = 0
    bytes_inline: int = 0
    bytes_namespace: int = 0
    bytes_namespace_max: int = 0
    """What the namespace weighs on each voter, and how large it may become now."""
    stripes_freed: int = 0
    sessions: int = 0
    leases: int = 0
    """Checkpoints that applications write to, or did until lately."""
    grpc_messages: int = 0
    damaged_shards: int = 0
    corrupt_shards_seen: int = 0
    tokens: int = 0
    """Registered, revoked ones among them."""
    refused: dict[str, int] = {}
    """Attempts that agents' doors have refused since they started, by reason."""
    audit_dropped: int = 0
    """Lines that are missing in audit files, for full or broken disks."""
    traffic: TrafficCounts = TrafficCounts()
    """Of all agents."""
    copies: CopyStatus = CopyStatus()
    tier: TierReport | None = None
    classes: list[ClassStatus] = []
    """By parity, the highest first."""
    quotas: list[QuotaStatus] = []
    files_thin: int = 0
    """In stripes of less parity than they ask for, until they are rewritten."""

    def is_protected(self) -> bool:
        """Whether everything survives k losses, but for what paths ask less for."""
        return self.margin >= self.parity_shards

    def is_whole(self) -> bool:
        """Protected, every agent up, and every voter with its memory."""
        return (
            self.is_protected()
            and all(agent.state == "up" for agent in self.agents)
            and all(voter.lag is not None for voter in self.voters)
        )


def cut(extents: Iterable[Extent], offset: int, length: int) -> list[Extent]:
    """The parts of `extents` that hold bytes [offset, offset + length) of the whole."""
    parts: list[Extent] = []
    for extent in extents:
        if length <= 0:
            break
        skip = min(offset, extent.length)
        offset -= skip
        take = min(length, extent.length - skip)
        if take > 0:
            parts.append(Extent(extent.stripe, extent.offset + skip, take))
            length -= take
    return parts
