"""The leader's room: one object for one view, with all that a leader does and knows.

It watches the agents, frees, packs, repairs, reports, and has lost agents started elsewhere.
It acts only through commands, orders to agents and `Hosts`; what it learns is lost with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from diskless.agent.leading.drain import Drain, TierAccess
from diskless.agent.leading.janitor import Janitor
from diskless.agent.leading.keeper import Keeper
from diskless.agent.leading.monitor import Monitor
from diskless.agent.leading.pacer import Pacer
from diskless.agent.leading.repairer import Repairer
from diskless.agent.leading.report import Reporter
from diskless.agent.leading.rewriter import Rewriter
from diskless.agent.leading.rollcall import RollCall
from diskless.agent.membership import Member
from diskless.agent.ports import Hosts, LeaderPeers, ShardPeers, Workers
from diskless.agent.reader import Reader
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.writer import Writer
from diskless.config import ClusterSettings
from diskless.model import AgentInfo, slot_name
from diskless.namespace import commands as c
from diskless.repair import overdue

log = logging.getLogger(__name__)


class Leader:
    """Implements Leadership for the agent's replica, and Ward for its hosts."""

    def __init__(
        self,
        *,
        settings: ClusterSettings,
        cluster_id: str,
        replica: Replica,
        roster: Roster,
        member: Member,
        peers: LeaderPeers,
        holders: ShardPeers,
        workers: Workers,
        writer: Writer,
        reader: Reader,
        hosts: Hosts | None,
        inline_room: Callable[[], bool],
        now_s: Callable[[], float],
        tier: TierAccess,
    ) -> None:
        """`hosts` is None where nobody can start agents; `inline_room` tells whether this
        agent has room for more inline bytes."""
        self._settings = settings
        self._replica = replica
        self._hosts = hosts
        self._homeless: Mapping[int, str] = {}
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.monitor = Monitor(
            slot=roster.slot,
            replica=replica,
            member=member,
            roster=roster,
            peers=peers,
            failure_timeout_s=settings.tuning.failure_timeout_s,
            slow_max=settings.parity_shards,
            inline_room=inline_room,
        )
        rewriter = Rewriter(replica=replica, writer=writer, reader=reader, tuning=settings.tuning)
        self._pacer = Pacer(share=settings.tuning.repair_share)
        self.repairer = Repairer(
            settings=settings,
            replica=replica,
            roster=roster,
            holders=holders,
            workers=workers,
            rewriter=rewriter,
            pacer=self._pacer,
            pulses=self.monitor.pulses,
            overdue=self.overdue,
            now_s=now_s,
        )
        self.drain = Drain(
            tier,
            replica=replica,
            roster=roster,
            writer=writer,
            pulses=self.monitor.pulses,
            tuning=settings.tuning,
            now_s=now_s,
        )
        self.janitor = Janitor(
            replica=replica,
            roster=roster,
            holders=holders,
            rewriter=rewriter,
            pulses=self.monitor.pulses,
            damaged=self.repairer.damaged,
            drainer=self.drain.drainer,
            tuning=settings.tuning,
        )
        self.rollcall = RollCall(
            replica=replica,
            holders=holders,
            pulses=self.monitor.pulses,
            interval_s=settings.tuning.janitor_interval_s,
        )
        self.keeper = Keeper(replica=replica)
        self._reporter = Reporter(
            settings=settings,
            cluster_id=cluster_id,
            slot=roster.slot,
            replica=replica,
            pulses=self.monitor.pulses,
            repairer=self.repairer,
            keeper=self.keeper,
            homeless=lambda: self._homeless,
            drain=self.drain,
        )

    def begin(self) -> None:
        """Starts its work. The agent's event loop must run."""
        self.monitor.publish()
        for part in (self.monitor, self.janitor, self.repairer, self.rollcall, self.keeper):
            self._spawn(part.run())
        self._spawn(self.drain.drainer.run())
        self._spawn(self.drain.hydrator.run())
        if self._hosts is not None:
            self._spawn(self._hosts.look_after(self))

    # -- for the replica ----------------------------------------------------------

    def end(self) -> None:
        self._ended = True
        self.monitor.stop()
        self.drain.backlog.leave()
        for task in self._tasks:
            task.cancel()

    def roster_changed(self) -> None:
        self.monitor.publish()

    def command_took(self, took_s: float) -> None:
        self._pacer.note_command(took_s)
        self.drain.pacer.note_command(took_s)

    def before(self, command: c.Command) -> Awaitable[None] | None:
        return self.drain.backlog.before(command)

    def after(self, command: c.Command) -> Awaitable[None] | None:
        return self.drain.backlog.after(command)

    def concerns(self, put: c.Put) -> bool:
        return self.drain.backlog.concerns(put)

    def report(self) -> bytes:
        return msgspec.json.encode(self._reporter.report())

    # -- for the hosts ------------------------------------------------------------

    def rules(self) -> bool:
        return not self._ended and self._replica.rules

    def agents(self) -> Mapping[int, AgentInfo]:
        return self._replica.state.agents

    def overdue(self) -> frozenset[int]:
        if self._ended:
            return frozenset()
        return overdue(
            self._replica.state.agents,
            elapsed_ms=self._replica.elapsed_ms(),
            delay_s=self._settings.tuning.repair_delay_s,
        )

    def can_spare(self, slots: frozenset[int]) -> bool:
        return not self._ended and self.repairer.can_spare(slots)

    def tell(self, homeless: Mapping[int, str]) -> None:
        self._homeless = homeless

    # -- its tasks ----------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a leader's work ended slot=%s", slot_name(self._replica.slot), exc_info=error
            )
