"""What the moving parts need from the edges: ways to reach other agents.

The edges (`rpc`) implement these; tests may too. Every method that waits has a
deadline of its own and raises Unavailable when it passes.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

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
)
from diskless.namespace import commands as c
from diskless.namespace.queries import Query
from diskless.namespace.views import TierPlace

Buffer = bytes | bytearray | memoryview


class Rebuilt(Struct, frozen=True):
    """What became of a stripe's shards that were to be rebuilt."""

    places: dict[int, Place]
    """Where each is stored now, by index."""
    failed: dict[int, DisklessError]
    """Slots that did not take theirs, and why."""


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
        """Stores a shard; returns the incarnation that has it.

        Raises CapacityExceeded, CorruptData (the bytes were damaged on the way) and
        Unavailable.
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
        """Has the agent look whether its shard is sound. Raises Unavailable."""
        ...

    async def miss(self, agent: AgentInfo, shards: Sequence[ShardName]) -> int:
        """Has the agent look which of these it does not have; how many it did not know of. It
        tells of them with its pulses. Raises Unavailable."""
        ...


class Workers(Protocol):
    """Agents, as those who rebuild shards."""

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
        """Sends a message that may get lost; never waits."""
        ...


class Hold(Struct, frozen=True, array_like=True, gc=False):
    """The lowest stripe of a writer that is stored, not committed, and still wanted."""

    slot: int
    incarnation: int
    counter: int


Undecided = tuple[int, int]
"""A writer, slot and incarnation: nothing names a shard of a stripe that it made, and a command
that is under way may still do so."""
Unclaimed = tuple[str, int]
"""A stripe that is known, and the later version of it that a shard was stored for."""


class Beat(Struct, frozen=True):
    """The leader's heartbeat."""

    leader: int
    roster_version: int
    roster: tuple[AgentInfo, ...] | None
    """None if the agent has this version already."""
    inline_room: bool
    view: int
    revoked_version: int = 0
    """The number of the newest revocation of a token."""
    revoked: tuple[tuple[str, int], ...] = ()
    """Names that the agent has not heard of, and when their tokens expire."""
    revoked_upto: int = 0
    """The number of the last one of these; more may follow with the next beat."""
    tier: str = ""
    """The address of the durable tier; empty if there is none."""
    tier_options: TierOptions = TierOptions()


class TierCounts(Struct, frozen=True):
    """What an agent has asked of the tier's store since it started."""

    requests: int = 0
    objects_put: int = 0
    bytes_put: int = 0
    bytes_got: int = 0


class Pulse(Struct, frozen=True):
    """An agent's answer to a beat."""

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
    """Of clients, since it started."""
    undecided: tuple[Undecided, ...] = ()
    unclaimed: tuple[Unclaimed, ...] = ()
    """What the last review of the agent's shards left open."""
    loop_lag: LoopLag = LoopLag()
    revoked_version: int = 0
    """The newest revocation of a token that the agent knows, with all before it."""
    refused: dict[str, int] = {}
    """Attempts that its doors refused, by reason, since it started."""
    audit_dropped: int = 0
    """Lines that are missing in its audit file."""
    tier: TierCounts = TierCounts()

    @property
    def bytes_used(self) -> int:
        return sum(self.memory.values())


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


FileRow = tuple[int, int, int, int, int]
"""Where a file's bytes lie in the tier: file, segment, offset, stored bytes, flags."""
SegmentRow = tuple[int, str, int]
"""An object of the tier with bytes of files: its number, its name, its bytes."""


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
    """Those with bytes of files, its own body too if there are any in it."""
    rows: tuple[FileRow, ...]
    """Where files lie from it on."""


class Loaded(Struct, frozen=True, kw_only=True):
    """A piece of what makes a state, in order: of each manifest its segments, a picture if it is
    whole, what was done since the one before, and then where files lie from it on."""

    epoch: int = 0
    """Of a manifest that began one: ids of files go on from there."""
    segments: tuple[SegmentRow, ...] = ()
    picture: bytes | None = None
    journal: Sequence[bytes] = ()
    rows: Sequence[FileRow] = ()


class Survey(Struct, frozen=True):
    """What the chain's past asks of the next round."""

    whole: bool = False
    """Whether it should be whole: then what nobody can return to goes with it."""
    rewrite: frozenset[int] = frozenset()
    """Segments that are mostly dead: a whole round brings what lives there anew."""


class Tier(Protocol):
    """The durable tier, as one agent reaches it.

    Every method raises StoreDown (again later; a write may have happened), StoreDenied and
    NoSuchBucket; those that read raise DamagedTier too.
    """

    @property
    def uri(self) -> str:
        """Without credentials."""
        ...

    async def look(self, number: int, *, epoch: int) -> Landed | None:
        """The manifest of a number, if there is one by now; the next round follows it. Raises
        Superseded if it is of another cluster or a later epoch."""
        ...

    async def survey(self, live_bytes: Mapping[int, int], *, thorough: bool) -> Survey:
        """Looks at what the chain holds, with how much of each segment lives. A `thorough` one is
        for the whole round that follows, which then names what is to be deleted."""
        ...

    async def clear(self, number: int) -> None:
        """Deletes what the last manifest, of that number, says is to be deleted."""
        ...

    def draft(self, round_id: str) -> "Draft":
        """A round that will follow the manifest that was looked at, or appended, last."""
        ...

    async def upload(
        self, files: Sequence[tuple[int, Buffer]], *, number: int, name: str
    ) -> Uploaded:
        """Stores files as a segment."""
        ...

    async def confirm(self, uploaded: Uploaded) -> None:
        """Returns if a segment that another agent has uploaded is there for this one too, whole.
        Raises StoreDown if not: a directory may be another one on each host."""
        ...

    async def read(
        self, place: TierPlace, *, file: int, size: int, start: int, stop: int
    ) -> memoryview:
        """Bytes `start` to `stop` of a file of `size` bytes, verified."""
        ...

    def contents(self, number: int, *, epoch: int) -> AsyncIterator[Loaded]:
        """All that makes the state at a manifest, but for files' bytes."""
        ...

    def counts(self) -> TierCounts: ...


class Draft(Protocol):
    """A manifest to be. What is added may be uploaded at once, but nothing names it yet."""

    @property
    def round_id(self) -> str:
        """Drawn at random: by it a leader knows its own."""
        ...

    def reserve(self) -> tuple[int, str]:
        """A number and a name for a segment that an agent will upload."""
        ...

    def name(self, uploaded: Uploaded) -> None:
        """A segment that was uploaded for this round, or that earlier ones named."""
        ...

    async def add_file(self, id_: int, data: Buffer) -> None: ...

    async def add_picture(self, chunk: bytes) -> None:
        """The next part of a whole picture: the manifest is whole then."""
        ...

    async def add_journal(self, entries: Sequence[bytes]) -> None:
        """The next entries since the manifest before."""
        ...

    async def append(self, *, change: int, op: int, time_ms: int, last_file: int) -> Landed:
        """Makes it the chain's next manifest, if that number is free: the answer is what has the
        number then, which may be another round of the same epoch. Raises Superseded."""
        ...

    async def abandon(self) -> None:
        """Ends what is under way; what was written is garbage."""
        ...


class Uploaders(Protocol):
    """Agents, as those who bring files to the tier."""

    async def upload(
        self,
        agent: AgentInfo,
        records: Sequence[FileRecord],
        stripes: Sequence[Stripe],
        *,
        number: int,
        name: str,
    ) -> Uploaded:
        """Has the agent read these files and store them as a segment. Raises TooFewShards,
        NotFound, StoreDown and the like, Unavailable."""
        ...


class Leadership(Protocol):
    """What an agent does because it leads: begins with a view, and ends with it."""

    def end(self) -> None:
        """The view is over, or another leads: stops everything at once."""
        ...

    def roster_changed(self) -> None:
        """An agent's address or state is another one now, or a token was revoked."""
        ...

    def command_took(self, took_s: float) -> None:
        """A client's command has been committed."""
        ...

    def before(self, command: c.Command) -> Awaitable[None] | None:
        """What a client's command must wait for before it is logged. It raises why the command
        is refused."""
        ...

    def after(self, command: c.Command) -> Awaitable[None] | None:
        """What the answer to a command, which is applied, must wait for. It raises NotDurable,
        or Superseded."""
        ...

    def concerns(self, put: c.Put) -> bool:
        """Whether a put of the command must wait: others that it was packed with need not."""
        ...

    def report(self) -> bytes:
        """The whole cluster's status, as JSON."""
        ...


class Ward(Protocol):
    """What a leader tells those who can start agents elsewhere, and hears from them.

    Everything is asked on the leader's event loop. Once the view is over it rules no more
    and nothing is overdue.
    """

    def rules(self) -> bool:
        """Whether it leads and a majority follows: only then may anything be decided."""
        ...

    def agents(self) -> Mapping[int, AgentInfo]: ...

    def overdue(self) -> frozenset[int]:
        """The slots of agents that are down beyond the repair delay."""
        ...

    def can_spare(self, slots: frozenset[int]) -> bool:
        """Whether nothing is lost without these agents."""
        ...

    def tell(self, homeless: Mapping[int, str]) -> None:
        """Says what becomes of slots that have lost their nodes; `status` shows it."""
        ...


class Hosts(Protocol):
    """The machines that agents run on, and others that they could run on."""

    async def look_after(self, ward: Ward) -> None:
        """Starts lost agents elsewhere, for as long as the leader leads; until cancelled."""
        ...
