"""One agent, put together: its parts, its doors and its background work.

Knows nothing of Ray: a Ray actor runs one of these, a local cluster several in one
process. Everything runs on the event loop that `start` was called on.
"""

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_64_intdigest

from diskless.agent.faults import Faults
from diskless.agent.janitor import Janitor, Sweeper
from diskless.agent.membership import Member, Monitor
from diskless.agent.pacer import Pacer
from diskless.agent.packer import Packer
from diskless.agent.ports import Hold
from diskless.agent.reader import Reader
from diskless.agent.rebuilder import Rebuilder
from diskless.agent.repairer import Repairer
from diskless.agent.replica import Replica
from diskless.agent.report import Reporter
from diskless.agent.rewriter import Rewriter
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.scrubber import Scrubber
from diskless.agent.shards import RESERVE_SHARE, ShardStore
from diskless.agent.uploads import Uploads
from diskless.agent.writer import Writer
from diskless.config import ClusterSettings
from diskless.gateway.handlers import ClientDoor
from diskless.gateway.server import Gateway
from diskless.model import format_address, slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.rpc.peers import Peers
from diskless.rpc.server import AgentServer

log = logging.getLogger(__name__)

GATEWAY_PORTS = range(20_000, 32_000)


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What an agent is told when it starts."""

    cluster: ClusterSettings
    cluster_id: str
    secret: str
    slot: int
    socket_path: str
    bind_host: str = "127.0.0.1"
    """Address that other agents and clients reach it at."""
    failure_domain: str = "localhost"
    node: str = ""
    seeds: Mapping[int, str] = field(default_factory=dict)
    """gRPC addresses of other slots, as far as they are known."""


def gateway_port(cluster_id: str, slot: int) -> int:
    """The port that a slot's gateway would like, in all its lives: whoever was told where it
    is, as Spark's executors are, finds it again. Below those that systems give away."""
    digest = xxh3_64_intdigest(f"{cluster_id}/{slot}".encode())
    return GATEWAY_PORTS[digest % len(GATEWAY_PORTS)]


class Node:
    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.slot = settings.slot
        self.boot = secrets.token_hex(8)
        cluster, tuning = settings.cluster, settings.cluster.tuning
        self.roster = Roster(
            slot=self.slot,
            seeds=settings.seeds,
            now_s=time.monotonic,
            suspect_s=2 * tuning.failure_timeout_s,
        )
        self.faults = Faults()
        self.peers = Peers(
            slot=self.slot, secret=settings.secret, tuning=tuning, faults=self.faults
        )
        self.replica = Replica(
            slot=self.slot,
            settings=cluster,
            roster=self.roster,
            peers=self.peers,
            now_ms=_now_ms,
        )
        self.peers.on_broken = self.replica.stream_broke
        self.shards = ShardStore(
            bytes_max=cluster.memory_bytes,
            now_s=time.monotonic,
            other_bytes=lambda: self.replica.state.bytes_used + self.faults.ballast_bytes,
        )
        self.namespace = Router(
            replica=self.replica,
            roster=self.roster,
            peers=self.peers,
            timeout_s=tuning.request_timeout_s,
            failure_timeout_s=tuning.failure_timeout_s,
        )
        self.writer = Writer(
            settings=cluster, roster=self.roster, shards=self.shards, peers=self.peers
        )
        self.reader = Reader(
            roster=self.roster,
            shards=self.shards,
            peers=self.peers,
            locate=lambda stripes: self.namespace.query(q.Locate(tuple(stripes))),
            hedge_delay_s=tuning.hedge_delay_s,
            patience_s=2 * tuning.failure_timeout_s,
            lost_after_s=tuning.repair_delay_s,
        )
        self.rebuilder = Rebuilder(
            roster=self.roster, shards=self.shards, peers=self.peers, reader=self.reader
        )
        self.packer = Packer(
            tuning=tuning,
            roster=self.roster,
            writer=self.writer,
            namespace=self.namespace,
            read_stripe=self.reader.read_stripe,
        )
        self.uploads = Uploads(writer=self.writer, tuning=tuning, now_s=time.monotonic)
        self.member = Member(
            roster=self.roster,
            shards=self.shards,
            holds=self._holds,
            messages_sent=lambda: self.peers.messages_sent,
            corrupt_shards_seen=lambda: self.reader.corrupt_shards_seen,
            requests=lambda: self.door.requests,
            retain=self.peers.retain,
            repair_delay_s=tuning.repair_delay_s,
        )
        self.monitor = Monitor(
            slot=self.slot,
            replica=self.replica,
            member=self.member,
            roster=self.roster,
            peers=self.peers,
            failure_timeout_s=tuning.failure_timeout_s,
            inline_room=self._has_inline_room,
        )
        rewriter = Rewriter(
            replica=self.replica, writer=self.writer, reader=self.reader, tuning=tuning
        )
        self.pacer = Pacer(share=tuning.repair_share)
        self.replica.on_client_command = self.pacer.note_command
        self.repairer = Repairer(
            settings=cluster,
            replica=self.replica,
            roster=self.roster,
            shards=self.shards,
            peers=self.peers,
            rebuilder=self.rebuilder,
            rewriter=rewriter,
            pacer=self.pacer,
            pulses=self.monitor.pulses,
            now_ms=_now_ms,
            now_s=time.monotonic,
        )
        self.janitor = Janitor(
            replica=self.replica,
            roster=self.roster,
            shards=self.shards,
            peers=self.peers,
            rewriter=rewriter,
            pulses=self.monitor.pulses,
            damaged=self.repairer.damaged,
            tuning=tuning,
            now_ms=_now_ms,
        )
        self.sweeper = Sweeper(
            slot=self.slot,
            shards=self.shards,
            uploads=self.uploads,
            namespace=self.namespace,
            tuning=tuning,
        )
        self.scrubber = Scrubber(shards=self.shards, bytes_per_s=tuning.scrub_bytes_per_s)
        reporter = Reporter(
            settings=cluster,
            cluster_id=settings.cluster_id,
            slot=self.slot,
            replica=self.replica,
            pulses=self.monitor.pulses,
            repairer=self.repairer,
            unhosted=lambda: self.unhosted,
            now_ms=_now_ms,
        )
        self.replica.report = lambda: json.dumps(reporter.report()).encode()
        self.replica.on_roster = self.monitor.publish
        self.replica.on_role = self._on_role
        self.server = AgentServer(
            slot=self.slot,
            secret=settings.secret,
            shards=self.shards,
            rebuilds=self.rebuilder,
            namespace=self.replica,
            member=self.member,
            voter=self.replica,
        )
        self.door = ClientDoor(
            settings=cluster,
            cluster_id=settings.cluster_id,
            roster=self.roster,
            replica=self.replica,
            namespace=self.namespace,
            packer=self.packer,
            reader=self.reader,
            uploads=self.uploads,
            faults=self.faults,
            shards=self.shards,
        )
        self.gateway = Gateway(self.door, secret=settings.secret, tuning=tuning)
        self.address = ""
        self.gateway_address = ""
        self.unhosted: Mapping[int, str] = {}
        """What becomes of slots whose nodes are gone: whoever can start agents keeps it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._leading: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Opens the doors. Then `form` or `recover` makes it a member."""
        host = self.settings.bind_host
        self.address = self.peers.address = await self.server.start(host)
        self.roster.meet({self.slot: self.address})
        port = gateway_port(self.settings.cluster_id, self.slot)
        await self.gateway.start(self.settings.socket_path, host, port)
        self.gateway_address = format_address(host, self.gateway.tcp_port)
        log.info("agent serves slot=%s address=%s", slot_name(self.slot), self.address)
        self._spawn(self.replica.run())
        if self.slot >= self.settings.cluster.voters:
            self._spawn(self.member.watch_leader(self.settings.cluster.tuning.failure_timeout_s))
        self._spawn(self.sweeper.run())
        self._spawn(self.scrubber.run())

    async def form(self, addresses: Mapping[int, str]) -> None:
        """Makes this agent a founder of a new cluster. Only ever called by `up`."""
        self.roster.meet(addresses)
        self.replica.form(self.settings.cluster_id)
        self._spawn(self._join())

    async def recover(self) -> None:
        """Begins a later life of a slot, in a cluster that was formed."""
        self.replica.recover(self.settings.cluster_id)
        self._spawn(self._join())

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
                await self.roster.changed.wait()

    async def stop(self) -> None:
        """Ends at once, as a crash would, but leaves no socket or task behind."""
        for task in self._tasks:
            task.cancel()
        self.monitor.stop()
        await self.gateway.stop()
        self.uploads.close_all()
        self.reader.close()
        await self.server.stop()
        await self.peers.close()

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

    def _on_role(self, leads: bool) -> None:
        """What only the leader does begins and ends with its view."""
        for task in self._leading:
            task.cancel()
        self._leading.clear()
        self.monitor.stop()
        if leads:
            self.monitor.begin()
            for work in (self.monitor.run(), self.janitor.run(), self.repairer.run()):
                self._leading.add(self._spawn(work))

    def _has_inline_room(self) -> bool:
        cluster = self.settings.cluster
        allowed = cluster.tuning.inline_share_max * cluster.memory_bytes
        room = self.shards.bytes_used < (1 - RESERVE_SHARE) * cluster.memory_bytes
        return room and self.replica.state.bytes_inline < allowed

    def _holds(self) -> list[Hold]:
        if self.shards.incarnation is None:
            return []
        mine = Hold(self.slot, self.shards.incarnation, self.writer.held_from)
        return [mine, *self.uploads.holds()]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work ended slot=%s", slot_name(self.slot), exc_info=error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
