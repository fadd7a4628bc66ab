"""One agent, put together: its parts, its doors and its background work.

Knows nothing of Ray: a Ray actor runs one of these, a local cluster several in one
process. Everything runs on the event loop that `start` was called on. Nothing is decided
here: this is the one place that knows all parts, and only how they are connected.
"""

import asyncio
import logging
import os
import resource
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from diskless import malloc, paths
from diskless.agent import restoring
from diskless.agent.audit import AuditFile
from diskless.agent.cold import ColdReader
from diskless.agent.copies import Copies
from diskless.agent.faults import Faults
from diskless.agent.hits import Hits
from diskless.agent.holders import Holders
from diskless.agent.lag import LagMeter
from diskless.agent.leading import Leader
from diskless.agent.leading.drain import TierAccess
from diskless.agent.leaver import Leaver
from diskless.agent.membership import Member
from diskless.agent.memory import Memory, Use
from diskless.agent.notebook import Notebook
from diskless.agent.packer import Packer
from diskless.agent.ports import CopyCounts, Hold, Hosts, Tier
from diskless.agent.reader import Reader
from diskless.agent.rebuilder import AllWorkers, Rebuilder
from diskless.agent.replica import Replica, read_clock_ms
from diskless.agent.revoked import Revoked
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.scrubber import Scrubber
from diskless.agent.shards import ShardStore
from diskless.agent.sweeper import Sweeper
from diskless.agent.ticking import rest
from diskless.agent.tiers import NO_TIER, Named, OpenTier, Tiers
from diskless.agent.uploader import AllUploaders, Uploader
from diskless.agent.uploads import Uploads
from diskless.agent.writer import Writer
from diskless.config import ClusterSettings, TierSettings
from diskless.errors import BadSettings
from diskless.gateway.handlers import ClientHandlers
from diskless.gateway.marks import Marks
from diskless.gateway.server import Gateway
from diskless.identity.certificates import Certificates, is_due, validity
from diskless.identity.claims import Keyring
from diskless.identity.handshake import Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.model import TierOptions, TrafficCounts, format_address, slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.notes import Noted
from diskless.rpc.peers import Peers
from diskless.rpc.server import AgentServer
from diskless.rpc.tls import Tls

if TYPE_CHECKING:
    from diskless.dashboard.door import HttpDoor
    from diskless.dashboard.own import Own
    from diskless.dashboard.page import Page

log = logging.getLogger(__name__)

SUSPICION_POLL_S = 0.1
LOOK_INTERVAL_S = 1.0
TRIM_INTERVAL_S = 0.2
TRIM_PART = 1 / 200
"""How often an agent looks whether it is nearly full, and then gives free parts of its heap back;
of its time that takes so much at most: it takes longer the larger the heap is."""
TRIM_SHARE = 3 / 4
"""Of its memory in use, from which on an agent gives free parts of its heap back."""
CERTIFICATE_LOOK_S = 600.0
LOOPBACK = "127.0.0.1"
GATEWAY_PORTS = range(20_000, 32_000)


def read_wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What an agent is told when it starts, and its clocks."""

    cluster: ClusterSettings
    cluster_id: str
    key: str
    """The cluster's root key, in hex."""
    slot: int
    socket_path: str
    bind_host: str = "127.0.0.1"
    """Address that other agents and clients reach it at."""
    failure_domain: str = "localhost"
    node: str = ""
    seeds: Mapping[int, str] = field(default_factory=dict)
    """gRPC addresses of other slots, as far as they are known."""
    wall_ms: Callable[[], int] = read_wall_ms
    now_s: Callable[[], float] = time.monotonic
    clock_ms: Callable[[], int] = read_clock_ms
    """Its other clocks: for what waits, and the voter's."""
    audit_dir: str = ""
    """Where its audit file is; it has none if this is empty."""
    tls: Certificates | None = None
    """What this agent shows of itself at its TCP doors; None if they are not encrypted."""
    tier: TierSettings | None = None
    """The tier that the cluster begins with; which one it has later the namespace says."""

    @property
    def epoch(self) -> int:
        """Which life of the cluster this is; 0 if it began empty."""
        return self.tier.restored_epoch if self.tier is not None else 0

    @property
    def keyring(self) -> Keyring:
        return Keyring.from_hex(self.cluster_id, self.key)


def gateway_port(cluster_id: str, slot: int) -> int:
    """The port that a slot's gateway would like, in all its lives: whoever was told where it
    is, as Spark's executors are, finds it again. Below those that systems give away."""
    digest = xxh3_64_intdigest(f"{cluster_id}/{slot}".encode())
    return GATEWAY_PORTS[digest % len(GATEWAY_PORTS)]


class Node:
    def __init__(
        self,
        settings: NodeSettings,
        *,
        hosts: Hosts | None = None,
        open_tier: OpenTier | None = None,
        connect: Callable[..., Peers] = Peers,
    ) -> None:
        """`hosts` starts agents elsewhere whose own hosts are gone, if somebody can. `open_tier`
        opens tiers otherwise than by their addresses, `connect` reaches agents otherwise than by
        gRPC."""
        self.settings = settings
        self.slot = settings.slot
        self.boot = secrets.token_hex(8)
        self.restored = 0.0
        """The part of the namespace that has come out of the tier."""
        self._hosts = hosts
        self._open_tier = open_tier or self._open_at
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.gateway_address = ""
        self._connect_agents()
        self._keep_bytes()
        self._belong()
        self._open_doors()

    def _connect_agents(self) -> None:
        """What this agent knows of the others, the way to them, and the namespace."""
        cluster, tuning = self.settings.cluster, self.settings.cluster.tuning
        self.roster = Roster(
            slot=self.slot,
            seeds=self.settings.seeds,
            now_s=self.settings.now_s,
            suspect_s=2 * tuning.failure_timeout_s,
        )
        self.lag = LagMeter(self.settings.now_s)
        self.revoked = Revoked(wall_s=lambda: self.settings.wall_ms() / 1000)
        self.refusals = Refusals()
        self.audit: AuditFile | None = None
        if self.settings.audit_dir:
            self.audit = AuditFile(
                self.settings.audit_dir, slot=self.slot, wall_ms=self.settings.wall_ms
            )
            self.refusals.on_refusal(self.audit.refused)
        self.memory = Memory(cluster.memory_bytes)
        self.faults = Faults(self.memory)
        tls = self.settings.tls
        self._tls = None if tls is None else Tls(tls, cluster=self.settings.cluster_id)
        self.peers = self._connect(
            slot=self.slot,
            keyring=self.settings.keyring,
            tuning=tuning,
            faults=self.faults,
            tls=self._tls,
        )
        self.replica = Replica(
            slot=self.slot,
            settings=cluster,
            roster=self.roster,
            peers=self.peers,
            lead=self._lead,
            wall_ms=self.settings.wall_ms,
            audit=self.audit,
            noted=self._noted,
            clock_ms=self.settings.clock_ms,
        )
        self.peers.on_broken = self.replica.stream_broke
        self.namespace = Router(
            replica=self.replica,
            roster=self.roster,
            peers=self.peers,
            timeout_s=tuning.request_timeout_s,
            failure_timeout_s=tuning.failure_timeout_s,
        )

    def _keep_bytes(self) -> None:
        """What stores bytes, reads them, and makes them again."""
        cluster, tuning = self.settings.cluster, self.settings.cluster.tuning
        self.memory.meter(self.replica.weigh, self.replica.weights)
        self.memory.meter(
            lambda: {"caches": paths.bytes_remembered() + self.revoked.bytes_used},
            lambda: (0, paths.bytes_remembered() + self.revoked.bytes_used),
        )
        self.notebook = Notebook(
            slot=self.slot,
            voters=cluster.voters,
            roster=self.roster,
            namespace=self.namespace,
            peers=self.peers,
            memory=self.memory,
            timeout_s=tuning.failure_timeout_s,
        )
        self.copies: Copies | None = None
        if cluster.cache_bytes:
            self.copies = Copies(slot=self.slot, memory=self.memory, bytes_max=cluster.cache_bytes)
        self.shards = ShardStore(
            memory=self.memory,
            now_s=self.settings.now_s,
            on_drop=self.copies.drop if self.copies is not None else None,
        )
        self.holders = Holders(slot=self.slot, shards=self.shards, peers=self.peers)
        self.writer = Writer(
            settings=cluster,
            roster=self.roster,
            shards=self.shards,
            holders=self.holders,
            memory=self.memory,
            copies=self.copies,
        )
        self.hits = Hits(self.settings.now_s)
        self.tiers = Tiers(open_tier=self._open_tier, look=self._named_tier)
        self.cold = ColdReader(
            tiers=self.tiers,
            locate=lambda id_, at: self.namespace.query(q.TierParts(id_, at)),
            memory=self.memory,
            roster=self.roster,
            peers=self.peers,
        )
        self.reader = Reader(
            roster=self.roster,
            holders=self.holders,
            locate=lambda stripes: self.namespace.query(q.Locate(tuple(stripes))),
            behind=lambda extent: self.namespace.query(q.Behind(extent)),
            hedge_delay_s=tuning.hedge_delay_s,
            patience_s=2 * tuning.failure_timeout_s,
            lost_after_s=tuning.repair_delay_s,
            memory=self.memory,
            cold=self.cold,
            copies=self.copies,
        )
        self.uploader = Uploader(reader=self.reader, tiers=self.tiers, memory=self.memory)
        self.rebuilder = Rebuilder(
            roster=self.roster,
            holders=self.holders,
            reader=self.reader,
            memory=self.memory,
            stripe_bytes=tuning.stripe_bytes,
        )
        self.packer = Packer(
            tuning=tuning,
            roster=self.roster,
            writer=self.writer,
            namespace=self.namespace,
            read_stripe=self.reader.read_stripe,
        )
        self.uploads = Uploads(
            writer=self.writer,
            tuning=tuning,
            now_s=self.settings.now_s,
            memory=self.memory,
            relief=lambda: self.roster.relief,
        )

    def _belong(self) -> None:
        """What makes it a member, and what it does in the background."""
        tuning = self.settings.cluster.tuning
        self.sweeper = Sweeper(
            slot=self.slot,
            shards=self.shards,
            uploads=self.uploads,
            namespace=self.namespace,
            tuning=tuning,
        )
        self.scrubber = Scrubber(
            shards=self.shards,
            bytes_per_s=tuning.scrub_bytes_per_s,
            pace=lambda: self.roster.upkeep_pace,
        )
        self.member = Member(
            roster=self.roster,
            shards=self.shards,
            memory=self.memory,
            sweeper=self.sweeper,
            holds=self._holds,
            messages_sent=lambda: self.peers.messages_sent,
            corrupt_shards_seen=lambda: self.reader.corrupt_shards_seen,
            requests=lambda: self.handlers.requests,
            loop_lag=self.lag.read,
            revoked=self.revoked,
            refused=self._refused,
            audit_dropped=lambda: self.audit.dropped if self.audit is not None else 0,
            tiers=self.tiers,
            hits=self.hits,
            copies=self._copy_counts,
            http=lambda: self.http.address if self.http is not None else "",
            traffic=self._traffic,
            retain=self.peers.retain,
            view=lambda: self.replica.view if self.replica.recovered else 0,
            repair_delay_s=tuning.repair_delay_s,
        )

    def _open_doors(self) -> None:
        """What other agents and clients reach."""
        settings = self.settings
        self.doorkeeper = Doorkeeper(
            settings.keyring,
            slot=self.slot,
            revoked=self.revoked,
            wall_s=lambda: settings.wall_ms() / 1000,
        )
        self.server = AgentServer(
            slot=self.slot,
            doorkeeper=self.doorkeeper,
            refusals=self.refusals,
            tls=self._tls,
            shards=self.shards,
            rebuilds=self.rebuilder,
            uploader=self.uploader,
            cold=self.cold,
            namespace=self.replica,
            member=self.member,
            voter=self.replica,
            notes=self.notebook,
        )
        self.handlers = ClientHandlers(
            settings=settings.cluster,
            cluster_id=settings.cluster_id,
            roster=self.roster,
            namespace=self.namespace,
            packer=self.packer,
            reader=self.reader,
            cold=self.cold,
            hits=self.hits,
            uploads=self.uploads,
            faults=self.faults,
            shards=self.shards,
            marks=Marks(settings.keyring, epoch=settings.epoch),
            notebook=self.notebook,
            epoch=settings.epoch,
            tls=settings.tls,
        )
        _raise_file_limit()
        self.gateway = Gateway(
            self.handlers,
            doorkeeper=self.doorkeeper,
            refusals=self.refusals,
            tls=settings.tls,
            tuning=settings.cluster.tuning,
            memory=self.memory,
        )
        self.revoked.on_change(self.gateway.recheck)
        self.own: Own | None = None
        self.page: Page | None = None
        self.http = self._show() if settings.cluster.metrics_port else None

    def _show(self) -> "HttpDoor":
        """What people and Prometheus look at."""
        # Only who shows something needs its libraries.
        from diskless.dashboard.own import Own
        from diskless.dashboard.page import Page

        own = self.own = Own(
            slot=self.slot,
            cluster=self.settings.cluster.name,
            memory=self.memory,
            shards=self.shards,
            lag=self.lag,
            handlers=self.handlers,
            gateway=self.gateway,
            reader=self.reader,
            refusals=self.refusals,
            peers=self.peers,
            replica=self.replica,
            tiers=self.tiers,
            hits=self.hits,
            copies=self._copy_counts,
            audit=self.audit,
            notebook=self.notebook,
        )
        self.page = Page(
            own,
            slot=self.slot,
            keyring=self.settings.keyring,
            doorkeeper=self.doorkeeper,
            refusals=self.refusals,
            memory=self.memory,
            handlers=self.handlers,
            namespace=self.namespace,
            wall_ms=self.settings.wall_ms,
            is_ready=lambda: self.roster.version >= 0,
        )
        self.revoked.on_change(self.page.door.recheck)
        return self.page.door

    def _noted(self, path: str, limit: int) -> Noted:
        return self.notebook.table.of(path, limit)

    @property
    def leading(self) -> Leader | None:
        """What this agent does because it leads, while it does."""
        leading = self.replica.leading
        assert leading is None or isinstance(leading, Leader)
        return leading

    def _lead(self) -> Leader:
        leader = Leader(
            settings=self.settings.cluster,
            cluster_id=self.settings.cluster_id,
            replica=self.replica,
            roster=self.roster,
            member=self.member,
            peers=self.peers,
            holders=self.holders,
            workers=AllWorkers(slot=self.slot, here=self.rebuilder, peers=self.peers),
            writer=self.writer,
            reader=self.reader,
            hosts=self._hosts,
            inline_room=self._has_inline_room,
            now_s=self.settings.now_s,
            tier=self._tier_access(),
            notebook=self.notebook,
        )
        leader.begin()
        return leader

    def _tier_access(self) -> TierAccess:
        uploaders = AllUploaders(slot=self.slot, here=self.uploader, peers=self.peers)
        first = self.settings.tier
        return TierAccess(self.tiers, self.cold, self.uploader, uploaders, first)

    def _named_tier(self) -> Named | None:
        """The tier, by this agent's own voter, if it has one with its memory."""
        if self.slot >= self.settings.cluster.voters or not self.replica.recovered:
            return None
        tier = self.replica.state.tier
        return (tier.uri, tier.options) if tier.attached else NO_TIER

    def _open_at(self, uri: str, options: TierOptions) -> Tier:
        # Only who has a tier needs its libraries.
        from diskless.tier.port import open_port

        cluster = self.settings.cluster_id
        return open_port(uri, options, cluster=cluster, name=self.settings.cluster.name)

    async def start(self) -> None:
        """Opens the doors. Then `form` or `recover` makes it a member."""
        if self.audit is not None:
            self.audit.start()
        host = self.settings.bind_host
        self.address = self.peers.address = await self.server.start(host)
        self.roster.meet({self.slot: self.address})
        port = gateway_port(self.settings.cluster_id, self.slot)
        await self.gateway.start(self.settings.socket_path, host, port)
        self.gateway_address = format_address(host, self.gateway.tcp_port)
        if self.http is not None:
            cluster = self.settings.cluster
            shown_to = host if cluster.metrics_open else LOOPBACK
            await self.http.start(shown_to, cluster.metrics_port + self.slot, self.settings.tls)
        if self.page is not None:
            self._spawn(self.page.feed.run())
        log.info("agent serves slot=%s address=%s", slot_name(self.slot), self.address)
        self._spawn(self.replica.run())
        self._spawn(self.lag.run())
        if self.slot >= self.settings.cluster.voters:
            self._spawn(self.member.watch_leader(self.settings.cluster.tuning.failure_timeout_s))
        self._spawn(self.sweeper.run())
        self._spawn(self._trim_heap())
        self._spawn(self.scrubber.run())
        if self.settings.tls is not None:
            self._spawn(self._keep_certificate(self.settings.tls))

    async def restore(self) -> None:
        """Loads what the cluster begins with out of its tier: before `form`, on every founder.
        Raises DamagedTier, StoreDown and the like."""
        begins = self.settings.tier
        if begins is None or not begins.restores or self.slot >= self.settings.cluster.voters:
            return
        await restoring.restore(
            self.replica.state,
            self.tiers.open(begins.uri, begins.options),
            uri=begins.uri,
            number=begins.number,
            epoch=begins.epoch,
            options=begins.options,
            rewound=begins.rewound,
            progress=self._note_restored,
        )

    def _note_restored(self, done: float) -> None:
        self.restored = max(done, self.restored)

    async def form(self, addresses: Mapping[int, str]) -> None:
        """Makes this agent a founder of a new cluster. Only ever called by `up`."""
        self.roster.meet(addresses)
        self.replica.form(self.settings.cluster_id)
        self._spawn(self._join())

    async def recover(self) -> None:
        """Begins a later life of a slot, in a cluster that was formed."""
        self.replica.recover(self.settings.cluster_id)
        self._spawn(self._return())

    async def ready(self, timeout_s: float) -> None:
        """Returns when the agent stores shards and votes; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self.member.joined.wait()
            while not self.replica.recovered:
                self.roster.changed.clear()
                await self.roster.changed.wait()

    async def sees(self, agents: int, timeout_s: float) -> None:
        """Returns when this agent knows of so many that are up; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.roster.alive()) < agents:
                self.roster.changed.clear()
                with suppress(TimeoutError):  # a suspicion ends without a word
                    await asyncio.wait_for(self.roster.changed.wait(), SUSPICION_POLL_S)

    async def leave(self, *, why: str) -> bool:
        """Has this agent emptied, for `end_notice_s` at most; whether it may be stopped then, or
        somebody does not want it to end after all."""
        leaver = Leaver(
            namespace=self.namespace, replica=self.replica, roster=self.roster, shards=self.shards
        )
        return await leaver.leave(self.settings.cluster.tuning.end_notice_s, why=why)

    async def stop(self) -> None:
        """Ends at once, as a crash would, but leaves no socket or task behind."""
        for task in self._tasks:
            task.cancel()
        self.replica.close()
        await self.gateway.stop()
        if self.http is not None:
            await self.http.stop()
        self.notebook.close()
        self.uploads.close_all()
        self.reader.close()
        self.cold.close()
        await self.server.stop()
        await self.peers.close()
        if self.audit is not None:
            await asyncio.to_thread(self.audit.close)

    async def _join(self) -> None:
        """Enters the roster, as a voter only once it has its memory: an agent that is up
        counts in the margin."""
        while not self.replica.recovered:
            self.roster.changed.clear()
            await self.roster.changed.wait()
        settings = self.settings
        await self.member.join(
            self.namespace,
            c.AgentUp(
                slot=self.slot,
                boot=self.boot,
                address=self.address,
                gateway=self.gateway_address,
                socket=settings.socket_path,
                host=settings.failure_domain,
                node=settings.node,
                pid=os.getpid(),
            ),
        )

    async def _return(self) -> None:
        """As `_join`, where others may have what this agent's earlier life had."""
        await self._join()
        await self.member.joined.wait()
        if self.slot < self.settings.cluster.voters:
            await self.notebook.catch_up()

    def _has_inline_room(self) -> bool:
        cluster = self.settings.cluster
        allowed = cluster.tuning.inline_share_max * cluster.memory_bytes
        return self.memory.room(Use.DATA) > 0 and self.replica.state.bytes_inline < allowed

    async def _keep_certificate(self, tls: Certificates) -> None:
        """Renews it before it expires. One that the operator brings is there when he has brought
        it, so it is looked for again and again."""
        while True:
            await asyncio.sleep(CERTIFICATE_LOOK_S)
            now = datetime.fromtimestamp(self.settings.wall_ms() / 1000, UTC)
            if not is_due(tls.pair.chain, now):
                continue
            slot, (_, end) = slot_name(self.slot), validity(tls.pair.chain)
            try:
                renewed = tls.refresh()
            except BadSettings as error:
                log.error("certificate not renewed slot=%s until=%s error=%s", slot, end, error)
            else:
                said = "renewed" if renewed else "expires soon, and there is no other"
                log.warning("certificate %s slot=%s until=%s", said, slot, end)

    async def _trim_heap(self) -> None:
        """Keeps the holes of a nearly full heap from counting as memory in use."""
        pause_s = LOOK_INTERVAL_S
        while True:
            await rest(pause_s)
            pause_s = LOOK_INTERVAL_S
            if self.memory.used > TRIM_SHARE * self.memory.bytes_max:
                began_s = time.monotonic()
                malloc.trim()
                took_s = time.monotonic() - began_s
                pause_s = max(TRIM_INTERVAL_S, took_s / TRIM_PART)

    def _refused(self) -> dict[str, int]:
        """By reason, whatever the door."""
        found: dict[str, int] = {}
        for (_, reason), count in self.refusals.counts.items():
            found[reason] = found.get(reason, 0) + count
        return found

    def _copy_counts(self) -> CopyCounts:
        return self.copies.counts() if self.copies is not None else CopyCounts()

    def _traffic(self) -> TrafficCounts:
        return self.handlers.traffic.totals()

    def _holds(self) -> list[Hold]:
        if self.shards.incarnation is None:
            return []
        mine = Hold(self.slot, self.shards.incarnation, self.writer.held_from)
        return [mine, *self.uploads.holds()]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work ended slot=%s", slot_name(self.slot), exc_info=error)


def _raise_file_limit() -> None:
    """Every client's connection is an open file, and systems start programs with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            log.warning("open files stay limited to %d: %s", soft, error)
