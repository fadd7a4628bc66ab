"""The interfaces through which an agent's parts reach other agents.

`rpc` implements these; tests may too. Every method that waits has its own timeout and raises
Unavailable when it expires.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from diskless.agent.memory import YIELDING
from diskless.agent.noted import IndexEntry, Row
from diskless.ends import Notice
from diskless.errors import DisklessError
from diskless.model import (
    AgentInfo,
    FileRecord,
    HeldShard,
    LoopLag,
    Place,
    ShardName,
    Stripe,
    TierOptions,
    TrafficCounts,
)
from diskless.namespace import commands as c
from diskless.namespace.queries import Query
from diskless.namespace.views import TierPlace
from diskless.policy import GradeRow
from diskless.upkeep import USUAL

Buffer = bytes | bytearray | memoryview


class Rebuilt(Struct, frozen=True):
    """The outcome of rebuilding shards of a stripe."""

    places: dict[int, Place]
    """Where each is stored now, by index."""
    failed: dict[int, DisklessError]
    """Slots that did not store theirs, and why."""


class ShardPeers(Protocol):
    """The shard memories of other agents."""

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
        """Stores a shard; returns the incarnation that holds it.

        Raises CapacityExceeded, CorruptData (the bytes were damaged in transit) and Unavailable.
        """
        ...

    async def fetch(
        self, agent: AgentInfo, *, stripe: str, index: int, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        """Blocks of a shard, unverified, and their checksums. Raises NotFound, Unavailable."""
        ...

    async def drop(self, agent: AgentInfo, stripes: Sequence[str]) -> None:
        """Forgets all shards of these stripes. Raises Unavailable."""
        ...

    async def drop_superseded(self, agent: AgentInfo, shards: Sequence[HeldShard]) -> None:
        """Forgets these shards, if they were stored for that version of their stripe or
        an earlier one. Raises Unavailable."""
        ...

    async def verify(self, agent: AgentInfo, *, stripe: str, index: int) -> bool:
        """Has the agent verify its shard. Raises Unavailable."""
        ...

    async def miss(self, agent: AgentInfo, shards: Sequence[ShardName]) -> int:
        """Has the agent check which of these it lacks; returns how many it did not know of. It
        reports them with its heartbeat answers. Raises Unavailable."""
        ...


class ChunkPeers(Protocol):
    """Other agents that also fetch chunks of files from the tier."""

    async def claim(
        self, agent: AgentInfo, *, file: int, chunks: range, without: int | None
    ) -> list[int]:
        """Claims these chunks at that agent; returns the slot that fetches each of them, never
        `without`, which lacked one. Raises Unavailable."""
        ...

    async def fetch(
        self, agent: AgentInfo, *, stripe: str, index: int, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        """Chunk `index` of the file that is named like a stripe, all of it, unverified, and its
        blocks' checksums. Raises NotFound if the agent does not have it; Unavailable."""
        ...


class Workers(Protocol):
    """Agents that rebuild shards."""

    async def rebuild(
        self, agent: AgentInfo, stripe: Stripe, targets: Mapping[int, int]
    ) -> Rebuilt:
        """Has the agent rebuild shards and store them on `targets`, slots by index.

        Raises TooFewShards, Unavailable.
        """
        ...


class VoterPeers(Protocol):
    """The other voters of the namespace."""

    def post(self, slot: int, address: str, message: bytes) -> None:
        """Sends a message that may be lost; never waits."""
        ...


class Hold(Struct, frozen=True, array_like=True, gc=False):
    """The lowest stripe of a writer that is stored, not committed yet, and still needed."""

    slot: int
    incarnation: int
    counter: int


Undecided = tuple[int, int]
"""A writer (slot and incarnation) of a stripe that no file uses yet, although a command in progress
may still name it."""
Unclaimed = tuple[str, int]
"""A stripe that is known, and the later version of it that a shard was stored for."""


class Beat(Struct, frozen=True):
    """The leader's heartbeat."""

    leader: int
    roster_version: int
    roster: tuple[AgentInfo, ...] | None
    """None if the agent already has this version."""
    inline_room: bool
    view: int
    revoked_version: int = 0
    """The number of the newest revocation of a token."""
    revoked: tuple[tuple[str, int], ...] = ()
    """Names that are new to the agent, and when their tokens expire."""
    revoked_upto: int = 0
    """The number of the last one of these; more may follow with the next heartbeat."""
    tier: str = ""
    """The address of the durable tier; empty if there is none."""
    tier_options: TierOptions = TierOptions()
    grades_mark: int = 0
    """Which parity and priority paths ask for: the same number for the same policies."""
    grades: tuple[GradeRow, ...] | None = None
    """None if the agent already has these."""
    relief: bool = False
    """Whether eviction makes room when memory is full: then writers wait for it."""
    unsteady: tuple[int, ...] = ()
    """Slots that get no new shards while others have room."""
    memory: dict[str, int] = {}
    memory_version: int = 0
    """The agent's account as the leader knows it: it comes only if it is another by now."""
    upkeep_pace: float = USUAL
    """How fast to look through what there is, in times as fast as is set."""


class TierCounts(Struct, frozen=True):
    """What an agent has asked of the tier's store since it started."""

    requests: int = 0
    objects_put: int = 0
    bytes_put: int = 0
    bytes_got: int = 0
    requests_failed: int = 0
    """Including those that timed out. An agent reports its own; no leader does."""


class CacheCounts(Struct, frozen=True):
    """Clients' reads at an agent since it started."""

    hits: int = 0
    misses: int = 0
    waited_ms: int = 0
    """By all that went to the tier."""
    wanted: tuple[int, ...] = ()
    """Files that were read there lately."""


class CopyCounts(Struct, frozen=True, kw_only=True):
    """Use of an agent's copies of others' shards since it started."""

    bytes_max: int = 0
    """How much they may take; 0 if the cache is off."""
    hits: int = 0
    misses: int = 0
    """Ranges of other agents' shards that clients' reads wanted: found here, and not."""
    bytes_hit: int = 0
    bytes_missed: int = 0
    corrupt: int = 0
    """Copies that failed their checksums, and were dropped."""


class Pulse(Struct, frozen=True):
    """An agent's answer to a heartbeat."""

    boot: str
    roster_version: int
    shards: int
    memory: dict[str, int]
    """The agent's account: bytes by kind."""
    bytes_max: int
    messages_sent: int
    corrupt_shards_seen: int
    holds: tuple[Hold, ...]
    damaged: tuple[tuple[str, int], ...] = ()
    """Shards of the agent, stripe and index, that are corrupt or missing."""
    requests: int = 0
    """Clients' requests since it started."""
    undecided: tuple[Undecided, ...] = ()
    unclaimed: tuple[Unclaimed, ...] = ()
    """What the last review of the agent's shards could not decide."""
    loop_lag: LoopLag = LoopLag()
    revoked_version: int = 0
    """The newest revocation of a token that the agent knows, with all before it."""
    refused: dict[str, int] = {}
    """Refused connection attempts, by reason, since it started."""
    audit_dropped: int = 0
    """Lines that are missing in its audit file."""
    tier: TierCounts = TierCounts()
    grades_mark: int = 0
    """Version of the policies that the agent has."""
    cache: CacheCounts = CacheCounts()
    http: str = ""
    """Where it serves its metrics; empty if it does not."""
    memory_version: int = 0
    """Version of the account, since the agent started: the same version means the same content."""
    traffic: TrafficCounts = TrafficCounts()
    copies: CopyCounts = CopyCounts()

    @property
    def bytes_used(self) -> int:
        """Without what is freed as soon as anything needs the room."""
        return sum(self.memory.values()) - sum(self.memory.get(kind, 0) for kind in YIELDING)


class LeaderPeers(Protocol):
    """The namespace on another agent, and the leader's heartbeats to it."""

    async def execute(
        self, slot: int, address: str, command: c.Command, *, timeout_s: float
    ) -> tuple[c.Result, ...]:
        """Has the agent there run a command. Raises NotLeader, Unavailable."""
        ...

    async def query(self, slot: int, address: str, query: Query, *, timeout_s: float) -> Any:
        """Asks the agent there. Raises what the query does, NotLeader, Unavailable."""
        ...

    async def beat(self, agent: AgentInfo, beat: Beat, *, timeout_s: float) -> Pulse:
        """Raises Unavailable."""
        ...


class NotePeers(Protocol):
    """Spark's notes at other voters. All raise Unavailable, and BadRequest if the agent there has a
    version without notes."""

    async def tell_notes(
        self, slot: int, address: str, rows: Sequence[Row], *, timeout_s: float
    ) -> None: ...

    async def notes_index(
        self, slot: int, address: str, after: str, *, timeout_s: float
    ) -> list[IndexEntry]: ...

    async def notes_of(
        self, slot: int, address: str, path: str, *, timeout_s: float
    ) -> Row | None: ...


FileRow = tuple[int, ...]
"""Where a file's bytes are in the tier: file, segment, offset, stored bytes, flags. A large file
has one for each part, with two more numbers: its first byte, and its size."""
SegmentRow = tuple[int, str, int]
"""An object of the tier with bytes of files: its number, its name, its bytes."""


class Stretch(NamedTuple):
    """Bytes of a file for the tier: all of them, or a part."""

    file: int
    data: Buffer
    start: int = 0
    more: bool = False
    """Whether others of that file follow."""


class Uploaded(Struct, frozen=True):
    """A segment that is in the tier, and that no manifest names yet."""

    number: int
    name: str
    bytes: int
    rows: tuple[FileRow, ...]

    @property
    def segment(self) -> SegmentRow:
        return self.number, self.name, self.bytes


class Landed(Struct, frozen=True, kw_only=True):
    """A manifest that is in the chain: what the namespace must know of it."""

    epoch: int
    number: int
    round_id: str
    change: int
    op: int
    """0 if it is not known: of a manifest that another leader has appended."""
    time_ms: int
    last_file: int
    base: int
    """The whole manifest that it builds on; its own number if it is whole, 0 if there is none."""
    journal_bytes: int
    segments: tuple[SegmentRow, ...]
    """Those with bytes of files, including its own body if it contains any."""
    rows: Sequence[FileRow]
    """Where files are, from this manifest on."""


class Loaded(Struct, frozen=True, kw_only=True):
    """A piece of a state, in order: for each manifest its segments, a picture if it is whole, the
    changes since the previous one, and then where files are from it on."""

    epoch: int = 0
    """Of a manifest that began one: ids of files continue from there."""
    segments: tuple[SegmentRow, ...] = ()
    picture: bytes | None = None
    journal: Sequence[bytes] = ()
    rows: Sequence[FileRow] = ()
    done: float = 0.0
    """The fraction of all bytes of such pieces that is loaded, including this one."""


class Survey(Struct, frozen=True):
    """What the chain needs from the next round."""

    whole: bool = False
    """Whether it should be whole: then what nobody can return to is deleted with it."""
    rewrite: frozenset[int] = frozenset()
    """Segments that are mostly garbage: a whole round uploads their live files again."""


class Tier(Protocol):
    """The durable tier, as one agent reaches it.

    Every method raises StoreDown (retry later; a write may have happened), StoreDenied and
    NoSuchBucket; those that read also raise DamagedTier.
    """

    @property
    def uri(self) -> str:
        """Without credentials."""
        ...

    async def look(self, number: int, *, epoch: int, rows: bool = True) -> Landed | None:
        """The manifest of a number, if there is one by now; the next round follows it. Without
        `rows` it is not read where files lie. Raises Superseded if it is of another cluster or a
        later epoch."""
        ...

    async def survey(self, live_bytes: Mapping[int, int], *, thorough: bool) -> Survey:
        """Examines what the chain holds, and how much of each segment is live. A `thorough` look
        prepares a whole round, which then names what is to be deleted."""
        ...

    async def clear(self, number: int) -> None:
        """Deletes what the last manifest, which has that number, names for deletion."""
        ...

    def draft(self, round_id: str) -> "Draft":
        """A round that will follow the manifest that was looked at, or appended, last."""
        ...

    async def upload(self, files: Sequence[Stretch], *, number: int, name: str) -> Uploaded:
        """Stores files, or a part of one, as a segment."""
        ...

    async def confirm(self, uploaded: Uploaded) -> None:
        """Returns if this agent can see all of a segment that another agent has uploaded. Raises
        StoreDown if not: a directory may be a different one on each host."""
        ...

    async def read(
        self, place: TierPlace, *, file: int, size: int, start: int, stop: int
    ) -> list[memoryview]:
        """Bytes `start` to `stop` of a file of `size` bytes, verified, as views of what was
        received; only those that the part at `place` has."""
        ...

    def contents(self, number: int, *, epoch: int) -> AsyncIterator[Loaded]:
        """All that makes the state at a manifest, but for files' bytes."""
        ...

    def counts(self) -> TierCounts: ...


class Draft(Protocol):
    """A future manifest. What is added may be uploaded at once, but nothing names it yet."""

    @property
    def round_id(self) -> str:
        """Random: by it a leader recognizes its own manifest."""
        ...

    def reserve(self) -> tuple[int, str]:
        """A number and a name for a segment that an agent will upload."""
        ...

    def name(self, uploaded: Uploaded) -> None:
        """A segment that was uploaded for this round."""
        ...

    def keep(self, held: Uploaded) -> None:
        """For a whole manifest: a segment that earlier ones named, and that the namespace knows."""
        ...

    async def add_file(self, id_: int, data: Buffer) -> None: ...

    async def add_picture(self, chunk: bytes) -> None:
        """The next part of a whole picture: the manifest is whole then."""
        ...

    async def add_journal(self, entries: Sequence[bytes]) -> None:
        """The next entries since the manifest before."""
        ...

    async def append(self, *, change: int, op: int, time_ms: int, last_file: int) -> Landed:
        """Makes it the chain's next manifest, if that number is free. Returns the manifest that has
        the number then, which may be another round of the same epoch. Raises Superseded."""
        ...

    async def abandon(self) -> None:
        """Cancels what is in progress. What was written is garbage."""
        ...


class UploadPart(Struct, frozen=True, array_like=True):
    """Which part of a large file is to be uploaded. All of a `run` go to one agent, in order, so
    that it can compare the file's own checksum in the end."""

    start: int
    end: int
    run: str


class Uploaders(Protocol):
    """Agents that upload files to the tier."""

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
        """Has the agent read these files and store them as a segment; or a `part` of one, whose
        record has only the extents of that part. Raises TooFewShards, NotFound, CorruptData, the
        store's errors, Unavailable."""
        ...


class Leadership(Protocol):
    """What an agent does as leader: starts with a view, and ends with it."""

    def end(self) -> None:
        """The view has ended, or another agent leads: stops everything at once."""
        ...

    def roster_changed(self) -> None:
        """An agent's address or state has changed, or a token was revoked."""
        ...

    def command_took(self, took_s: float) -> None:
        """A client's command has been committed."""
        ...

    def before(self, command: c.Command) -> Awaitable[None] | None:
        """What a client's command must wait for before it is logged. It raises why the command
        is refused."""
        ...

    def after(self, command: c.Command) -> Awaitable[None] | None:
        """What the answer to an applied command must wait for. It raises NotDurable or
        Superseded."""
        ...

    def concerns(self, put: c.Put) -> bool:
        """Whether a put of the command must wait. Others that were packed with it need not."""
        ...

    def before_answer(self, query: Query) -> int:
        """The change that must be durable before a query is answered; 0 if none."""
        ...

    def until_durable(self, change: int) -> Awaitable[None]:
        """Raises NotDurable after a while, or Superseded."""
        ...

    def report(self) -> bytes:
        """The whole cluster's status, as JSON."""
        ...


class Ward(Protocol):
    """What a leader exchanges with those who can start agents elsewhere.

    Everything is called on the leader's event loop. Once the view has ended it no longer leads and
    nothing is overdue.
    """

    def leads_majority(self) -> bool:
        """Whether it leads and a majority follows. Otherwise nothing may be decided."""
        ...

    def agents(self) -> Mapping[int, AgentInfo]: ...

    def overdue(self) -> frozenset[int]:
        """The slots of agents that are down for longer than the repair delay."""
        ...

    def can_spare(self, slots: frozenset[int]) -> bool:
        """Whether nothing is lost without these agents."""
        ...

    def emptied(self) -> frozenset[int]:
        """The slots of agents whose ends are announced and that have no shards any more."""
        ...

    async def announce(self, notices: Mapping[str, Notice]) -> None:
        """Announces that nodes, by their names, are about to end. Raises what a command raises that
        is not committed."""
        ...

    def tell(self, homeless: Mapping[int, str]) -> None:
        """Reports what happens with slots that have lost their nodes; `status` shows it."""
        ...


class Hosts(Protocol):
    """The machines that agents run on, and others that they could run on."""

    async def look_after(self, ward: Ward) -> None:
        """Starts lost agents elsewhere, for as long as the leader leads; until cancelled."""
        ...
