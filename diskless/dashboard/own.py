"""What one agent knows of itself, read off the counters of its parts.

It reads and changes nothing. All of it together is a few dozen numbers, whatever the agent holds.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from diskless import __version__
from diskless.agent.audit import AuditFile
from diskless.agent.hits import Hits
from diskless.agent.lag import LagMeter
from diskless.agent.leading import Leader
from diskless.agent.memory import Memory
from diskless.agent.notebook import Notebook
from diskless.agent.ports import CacheCounts, CopyCounts, TierCounts
from diskless.agent.reader import Reader
from diskless.agent.replica import Replica
from diskless.agent.shards import ShardStore
from diskless.agent.tiers import Tiers
from diskless.gateway.handlers import ClientHandlers
from diskless.gateway.server import Gateway
from diskless.identity.refusals import Refusals
from diskless.model import ClusterStatus, LoopLag, slot_name
from diskless.rpc.peers import Peers

Buckets = tuple[tuple[int, ...], float]
"""How many took how long, bucket by bucket, and the sum in seconds."""
NO_BUCKETS: Buckets = ((), 0.0)


class AgentCounts(Struct, frozen=True, kw_only=True):
    """One agent at one moment. Counters are since it started."""

    agent: str = ""
    cluster: str = ""
    version: str = ""
    leads: bool = False
    is_voter: bool = False
    view: int = 0
    memory: Mapping[str, int] = {}
    memory_max: int = 0
    shards: int = 0
    loop_lag: LoopLag = LoopLag()
    commits: Buckets = NO_BUCKETS
    files_written: int = 0
    bytes_written: int = 0
    reads: Buckets = NO_BUCKETS
    bytes_read: int = 0
    degraded_reads: int = 0
    corrupt_shards: int = 0
    errors: Mapping[str, int] = {}
    connections: int = 0
    connections_total: int = 0
    in_flight: int = 0
    frames_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refused: Mapping[tuple[str, str], int] = {}
    messages_sent: int = 0
    audit_dropped: int = 0
    tier: TierCounts = TierCounts()
    cache: CacheCounts = CacheCounts()
    copies: CopyCounts = CopyCounts()
    notes_told: int = 0
    notes_dropped: int = 0


class Own:
    """Reads the counters of an agent's parts."""

    def __init__(
        self,
        *,
        slot: int,
        cluster: str,
        memory: Memory,
        shards: ShardStore,
        lag: LagMeter,
        handlers: ClientHandlers,
        gateway: Gateway,
        reader: Reader,
        refusals: Refusals,
        peers: Peers,
        replica: Replica,
        tiers: Tiers,
        hits: Hits,
        copies: Callable[[], CopyCounts],
        audit: AuditFile | None,
        notebook: Notebook,
    ) -> None:
        self._slot = slot
        self._cluster = cluster
        self._memory = memory
        self._shards = shards
        self._lag = lag
        self._handlers = handlers
        self._gateway = gateway
        self._reader = reader
        self._refusals = refusals
        self._peers = peers
        self._replica = replica
        self._tiers = tiers
        self._hits = hits
        self._copies = copies
        self._audit = audit
        self._notebook = notebook

    def read(self) -> AgentCounts:
        traffic, counters = self._handlers.traffic, self._gateway.counters
        return AgentCounts(
            agent=slot_name(self._slot),
            cluster=self._cluster,
            version=__version__,
            leads=self._replica.leads_majority,
            is_voter=self._slot < self._replica.voters,
            view=self._replica.view,
            memory=self._memory.latest(),
            memory_max=self._memory.bytes_max,
            shards=len(self._shards),
            loop_lag=self._lag.read(),
            commits=traffic.commits.copy(),
            files_written=traffic.files_written,
            bytes_written=traffic.bytes_written,
            reads=traffic.reads.copy(),
            bytes_read=traffic.bytes_read,
            degraded_reads=self._reader.degraded_reads,
            corrupt_shards=self._reader.corrupt_shards_seen,
            errors=dict(self._gateway.errors),
            connections=counters.connections,
            connections_total=counters.connections_total,
            in_flight=self._gateway.requests_in_flight,
            frames_in=counters.frames_in,
            bytes_in=counters.bytes_in,
            bytes_out=counters.bytes_out,
            refused=dict(self._refusals.counts),
            messages_sent=self._peers.messages_sent,
            audit_dropped=self._audit.dropped if self._audit is not None else 0,
            tier=self._tiers.counts(),
            cache=self._hits.counts(),
            copies=self._copies(),
            notes_told=self._notebook.told,
            notes_dropped=self._notebook.dropped,
        )

    def cluster(self) -> ClusterStatus | None:
        """The whole cluster, on the agent that leads it; None on all others."""
        leading = self._replica.leading
        if not isinstance(leading, Leader) or not self._replica.leads_majority:
            return None
        return leading.status()
