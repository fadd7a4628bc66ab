"""One agent, put together: its parts, its doors and its background work.

Everything runs on the event loop that `start` was called on. Nothing is decided here: this package
is the one place that knows all parts, and only how they are connected.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

from diskless import paths
from diskless.agent import heap, renewal, restoring
from diskless.agent.audit import AuditFile
from diskless.agent.background import Background
from diskless.agent.faults import Faults
from diskless.agent.lag import LagMeter
from diskless.agent.leading import Leader
from diskless.agent.leading.drain import TierAccess
from diskless.agent.leaver import Leaver
from diskless.agent.membership import Member
from diskless.agent.memory import Memory, Use
from diskless.agent.notebook import Notebook
from diskless.agent.ports import Hosts, Tier
from diskless.agent.rebuilder import AllWorkers
from diskless.agent.replica import Replica
from diskless.agent.revoked import Revoked
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.tiers import NO_TIER, Named, OpenTier, Tiers
from diskless.agent.uploader import AllUploaders
from diskless.identity.refusals import Refusals
from diskless.model import TierOptions, TrafficCounts, format_address, slot_name
from diskless.namespace import commands as c
from diskless.node.doors import Doors
from diskless.node.settings import NodeSettings
from diskless.node.storage import Storage
from diskless.notes import Noted
from diskless.rpc.peers import Peers
from diskless.rpc.tls import Tls

log = logging.getLogger(__package__)

SUSPICION_POLL_S = 0.1


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
        self._background = Background(self.slot)
        self.address = ""
        self.gateway_address = ""
        self._connect_agents()
        self._keep_bytes()
        self._belong()
        self.doors = Doors(
            settings,
            storage=self.storage,
            roster=self.roster,
            peers=self.peers,
            replica=self.replica,
            namespace=self.namespace,
            member=self.member,
            notebook=self.notebook,
            memory=self.memory,
            faults=self.faults,
            lag=self.lag,
            revoked=self.revoked,
            refusals=self.refusals,
            audit=self.audit,
            tls=self._tls,
        )

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
        self.memory.meter(self.replica.weight.by_kind, self.replica.weight.totals)
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
        self.storage = Storage(
            slot=self.slot,
            settings=cluster,
            memory=self.memory,
            roster=self.roster,
            peers=self.peers,
            namespace=self.namespace,
            tiers=Tiers(open_tier=self._open_tier, look=self._named_tier),
            now_s=self.settings.now_s,
        )

    def _belong(self) -> None:
        """What makes it a member: what the leader hears of it."""
        storage = self.storage
        self.member = Member(
            roster=self.roster,
            shards=storage.shards,
            memory=self.memory,
            sweeper=storage.sweeper,
            holds=storage.holds,
            messages_sent=lambda: self.peers.messages_sent,
            corrupt_shards_seen=lambda: storage.reader.corrupt_shards_seen,
            requests=lambda: self.doors.handlers.requests,
            loop_lag=self.lag.read,
            revoked=self.revoked,
            refused=self._refused,
            audit_dropped=lambda: self.audit.dropped if self.audit is not None else 0,
            tiers=storage.tiers,
            hits=storage.hits,
            copies=storage.copy_counts,
            http=lambda: self.doors.http_address,
            traffic=self._traffic,
            retain=self.peers.retain,
            view=lambda: self.replica.view if self.replica.recovered else 0,
            repair_delay_s=self.settings.cluster.tuning.repair_delay_s,
        )

    def _noted(self, path: str, limit: int) -> Noted:
        return self.notebook.table.of(path, limit)

    @property
    def leading(self) -> Leader | None:
        """What this agent does because it leads, while it does."""
        leading = self.replica.leading
        assert leading is None or isinstance(leading, Leader)
        return leading

    def _lead(self) -> Leader:
        storage = self.storage
        leader = Leader(
            settings=self.settings.cluster,
            cluster_id=self.settings.cluster_id,
            replica=self.replica,
            roster=self.roster,
            member=self.member,
            peers=self.peers,
            holders=storage.holders,
            workers=AllWorkers(slot=self.slot, here=storage.rebuilder, peers=self.peers),
            writer=storage.writer,
            reader=storage.reader,
            hosts=self._hosts,
            inline_room=self._has_inline_room,
            now_s=self.settings.now_s,
            tier=self._tier_access(),
            notebook=self.notebook,
        )
        leader.begin()
        return leader

    def _tier_access(self) -> TierAccess:
        storage, first = self.storage, self.settings.tier
        uploaders = AllUploaders(slot=self.slot, here=storage.uploader, peers=self.peers)
        return TierAccess(storage.tiers, storage.cold, storage.uploader, uploaders, first)

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
        self.address = self.peers.address = await self.doors.open_for_agents()
        self.roster.meet({self.slot: self.address})
        await self.doors.open_for_clients()
        port = self.doors.gateway.tcp_port
        self.gateway_address = format_address(self.settings.bind_host, port)
        log.info("agent serves slot=%s address=%s", slot_name(self.slot), self.address)
        self._begin_work()

    def _begin_work(self) -> None:
        settings, begin = self.settings, self._background.begin
        if self.doors.page is not None:
            begin(self.doors.page.feed.run())
        begin(self.replica.run())
        begin(self.lag.run())
        if self.slot >= settings.cluster.voters:
            begin(self.member.watch_leader(settings.cluster.tuning.failure_timeout_s))
        begin(self.storage.sweeper.run())
        begin(heap.keep_trimmed(self.memory))
        begin(self.storage.scrubber.run())
        if settings.tls is not None:
            begin(renewal.keep_renewed(settings.tls, slot=self.slot, wall_ms=settings.wall_ms))

    async def restore(self) -> None:
        """Loads what the cluster begins with out of its tier: before `form`, on every founder.
        Raises DamagedTier, StoreDown and the like."""
        begins = self.settings.tier
        if begins is None or not begins.restores or self.slot >= self.settings.cluster.voters:
            return
        await restoring.restore(
            self.replica.state,
            self.storage.tiers.open(begins.uri, begins.options),
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
        self._background.begin(self._join())

    async def recover(self) -> None:
        """Begins a later life of a slot, in a cluster that was formed."""
        self.replica.recover(self.settings.cluster_id)
        self._background.begin(self._return())

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
            namespace=self.namespace,
            replica=self.replica,
            roster=self.roster,
            shards=self.storage.shards,
        )
        return await leaver.leave(self.settings.cluster.tuning.end_notice_s, why=why)

    async def stop(self) -> None:
        """Ends at once, as a crash would, but leaves no socket or task behind."""
        self._background.cancel()
        self.replica.close()
        await self.doors.close_for_clients()
        self.notebook.close()
        self.storage.close()
        await self.doors.close_for_agents()
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

    def _refused(self) -> dict[str, int]:
        """By reason, whatever the door."""
        found: dict[str, int] = {}
        for (_, reason), count in self.refusals.counts.items():
            found[reason] = found.get(reason, 0) + count
        return found

    def _traffic(self) -> TrafficCounts:
        return self.doors.handlers.traffic.totals()
