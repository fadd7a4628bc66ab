"""One object per view, with everything that a leader does and knows.

It monitors the agents, frees, packs, repairs, reports, and has lost agents restarted elsewhere.
It acts only through commands, calls to agents and `Hosts`. What it learns ends with the view.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from diskless.agent.leading.backlog import HOLD_S
from diskless.agent.leading.balancer import Balancer
from diskless.agent.leading.drain import Drain, TierAccess
from diskless.agent.leading.ends import Ends
from diskless.agent.leading.historian import Historian
from diskless.agent.leading.janitor import Janitor
from diskless.agent.leading.keeper import Keeper
from diskless.agent.leading.monitor import Monitor
from diskless.agent.leading.mover import Mover
from diskless.agent.leading.pacer import Pacer
from diskless.agent.leading.repairer import Repairer
from diskless.agent.leading.report import Reporter
from diskless.agent.leading.rewriter import Rewriter
from diskless.agent.leading.rollcall import RollCall
from diskless.agent.leading.salvager import Salvager
from diskless.agent.leading.tidier import Tidier
from diskless.agent.leading.upkeep import Upkeep
from diskless.agent.membership import Member
from diskless.agent.notebook import Notebook
from diskless.agent.ports import Hosts, LeaderPeers, ShardPeers, Workers
from diskless.agent.reader import Reader
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.writer import Writer
from diskless.config import ClusterSettings
from diskless.ends import Notice, ending, hurries
from diskless.model import AgentInfo, ClusterStatus, slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.repair import overdue, unsteady

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
        notebook: Notebook,
    ) -> None:
        """`hosts` is None where nothing can start agents. `inline_room` returns whether this agent
        has room for more inline bytes."""
        self._settings = settings
        self._replica = replica
        self._hosts = hosts
        self._notebook = notebook
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
            relief=self._makes_room,
            unsteady=self.unsteady,
            upkeep_pace=self._look_after,
        )
        rewriter = Rewriter(replica=replica, writer=writer, reader=reader, tuning=settings.tuning)
        self._pacer = Pacer(share=settings.tuning.repair_share)
        mover = Mover(
            replica=replica,
            roster=roster,
            holders=holders,
            workers=workers,
            pacer=self._pacer,
            pulses=self.monitor.pulses,
            now_s=now_s,
            hurries=self._hurries,
        )
        self.repairer = Repairer(
            settings=settings,
            replica=replica,
            roster=roster,
            mover=mover,
            balancer=Balancer(
                replica=replica,
                roster=roster,
                mover=mover,
                pulses=self.monitor.pulses,
                now_s=now_s,
            ),
            rewriter=rewriter,
            pulses=self.monitor.pulses,
            overdue=self.overdue,
            unsteady=self.unsteady,
            now_s=now_s,
            salvager=Salvager(replica=replica),
        )
        self.drain = Drain(
            tier,
            replica=replica,
            roster=roster,
            writer=writer,
            pulses=self.monitor.pulses,
            settings=settings,
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
        self.upkeep = Upkeep(
            replica=replica,
            pulses=self.monitor.pulses,
            damaged=self.repairer.damaged,
            now_s=now_s,
        )
        self.rollcall = RollCall(
            replica=replica,
            holders=holders,
            pulses=self.monitor.pulses,
            interval_s=settings.tuning.janitor_interval_s,
            pace=lambda: self.upkeep.pace.factor,
        )
        self.historian = Historian(replica=replica)
        self.keeper = Keeper(replica=replica)
        self.ends = Ends(replica=replica)
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
            upkeep=self.upkeep,
            historian=self.historian,
        )

    def begin(self) -> None:
        """Starts its tasks. The agent's event loop must be running."""
        self.monitor.publish()
        for part in (
            self.monitor,
            self.janitor,
            self.repairer,
            self.rollcall,
            self.keeper,
            self.ends,
        ):
            self._spawn(part.run())
        self._spawn(self.drain.drainer.run())
        self._spawn(self.drain.hydrator.run())
        self._spawn(self.drain.evictor.run())
        self._spawn(self.historian.run())
        self._spawn(Tidier(replica=self._replica).run())
        self._spawn(self._notebook.catch_up())
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
        self.upkeep.note_change()
        self._pacer.note_command(took_s)
        self.drain.pacer.note_command(took_s)
        self.drain.drainer.pacer.note_command(took_s)

    def before(self, command: c.Command) -> Awaitable[None] | None:
        held = self.drain.evictor.before(command)
        return held if held is not None else self.drain.backlog.before(command)

    def after(self, command: c.Command) -> Awaitable[None] | None:
        return self.drain.backlog.after(command)

    def concerns(self, put: c.Put) -> bool:
        return self.drain.backlog.concerns(put)

    def before_answer(self, query: q.Query) -> int:
        return self.drain.backlog.before_answer(query)

    def until_durable(self, change: int) -> Awaitable[None]:
        return self.drain.backlog.reach(change, HOLD_S)

    def _makes_room(self) -> bool:
        return self.drain.evictor.helps()

    def _hurries(self) -> bool:
        progress = self.repairer.progress.report()
        return hurries(
            self._replica.state.agents.values(),
            elapsed_ms=self._replica.elapsed_ms(),
            bytes_left=progress.bytes_left,
            bytes_per_s=progress.bytes_per_s,
        )

    def _look_after(self) -> float:
        return self.upkeep.look()

    def report(self) -> bytes:
        return msgspec.json.encode(self.status())

    def status(self) -> ClusterStatus:
        return self._reporter.report()

    # -- for the hosts ------------------------------------------------------------

    def leads_majority(self) -> bool:
        return not self._ended and self._replica.leads_majority

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

    def unsteady(self) -> frozenset[int]:
        return unsteady(self._replica.state.roster.lapses, elapsed_ms=self._replica.elapsed_ms())

    def can_spare(self, slots: frozenset[int]) -> bool:
        return not self._ended and self.repairer.can_spare(slots)

    def emptied(self) -> frozenset[int]:
        if self._ended:
            return frozenset()
        state = self._replica.state
        placed = state.health.shards_placed
        others = ending(state.agents) - {self._replica.slot}
        return frozenset(s for s in others if state.agents[s].up and not placed[s])

    async def announce(self, notices: Mapping[str, Notice]) -> None:
        if self.leads_majority():
            await self.ends.announce(notices)

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
