"""The leader's monitoring of the agents: its beats, who is down, and who is slow.

A command marks an agent down when it refuses connections or does not answer for
`failure_timeout`, or for three timeouts while most others do not answer either. If the same
process answers again, it is marked up again and keeps its shards.
An agent that answers much later than the others is marked slow (`leading.slowness`) until it
answers in time again.
Everything known here about other agents was received in this view.
"""

import asyncio
import logging
from collections.abc import Callable

from diskless.agent.leading.slowness import LATE_S, Slowness
from diskless.agent.membership import Member
from diskless.agent.memory import namespace_limit
from diskless.agent.ports import Beat, LeaderPeers, Pulse
from diskless.agent.replica import Replica
from diskless.agent.revoked import PART_MAX
from diskless.agent.roster import Roster
from diskless.errors import DisklessError, Unavailable
from diskless.model import AgentInfo, slot_name
from diskless.namespace import commands as c
from diskless.upkeep import USUAL

log = logging.getLogger(__name__)

BEATS_PER_TIMEOUT = 4
PARTS_AT_ONCE_MAX = 8
"""Parts of the list of revoked names that a leader takes at once from its own namespace."""
CROWD_PATIENCE = 3
"""After how many failure timeouts an agent is down while most agents do not answer."""


class Monitor:
    def __init__(
        self,
        *,
        slot: int,
        replica: Replica,
        member: Member,
        roster: Roster,
        peers: LeaderPeers,
        failure_timeout_s: float,
        slow_max: int,
        inline_room: Callable[[], bool],
        relief: Callable[[], bool] = lambda: False,
        unsteady: Callable[[], frozenset[int]] = frozenset,
        upkeep_pace: Callable[[], float] = lambda: USUAL,
    ) -> None:
        """At most `slow_max` agents are marked slow at once. `relief` returns whether room is
        being made while memory is full, `unsteady` the agents that fail often, `upkeep_pace` how
        fast agents check what they hold."""
        self._upkeep_pace = upkeep_pace
        self._relief = relief
        self._unsteady = unsteady
        self._slot = slot
        self._replica = replica
        self._member = member
        self._roster = roster
        self._peers = peers
        self._timeout_s = failure_timeout_s
        self._inline_room = inline_room
        self._slowness = Slowness(judge=slot, slow_max=slow_max)
        self._marking: set[int] = set()  # whose mark is about to change
        self._heard_s: dict[int, float] = {}
        self._beating: dict[int, asyncio.Task[None]] = {}
        self._told: tuple[AgentInfo, ...] = ()
        self._told_version = -1
        self._wake = asyncio.Event()
        self.pulses: dict[int, Pulse] = {}
        """The latest answer of each agent, including this one."""

    def publish(self) -> None:
        """Passes a changed roster, newly revoked names and changed grades to this agent at once
        and to the others soon."""
        state = self._replica.state
        self._roster.leader = self._slot
        self._roster.grades = state.policies.grades
        self._roster.grades_mark = state.policies.grades_mark
        self._learn_revoked()
        if self._member.revoked.known:
            self._member.learn(version=state.roster_version, agents=state.agents.values())
        self._wake.set()

    def _learn_revoked(self) -> None:
        """As agents learn it, but without beats: a bounded number of names at once."""
        tokens, known = self._replica.state.tokens, self._member.revoked
        for _ in range(PARTS_AT_ONCE_MAX):
            if known.known and known.version >= tokens.version:
                return
            names, upto = tokens.revoked_after(known.version, limit=PART_MAX)
            known.learn(names, upto=upto, version=tokens.version)

    async def run(self) -> None:
        """Beats until cancelled."""
        loop = asyncio.get_running_loop()
        interval_s = self._timeout_s / BEATS_PER_TIMEOUT
        woke_s = loop.time()
        while True:
            now_s = loop.time()
            if now_s - woke_s > interval_s + self._timeout_s / 2:
                # This process was paused. The others may have answered all the time.
                log.warning("own pause of %.2f s: no agent is marked down for it", now_s - woke_s)
                self._forgive(now_s, now_s - woke_s - interval_s)
            woke_s = now_s
            for agent in list(self._replica.state.agents.values()):
                if agent.slot != self._slot and agent.slot not in self._beating:
                    self._beating[agent.slot] = asyncio.create_task(self._beat(agent))
            state = self._replica.state
            if (
                self._member.revoked.version < state.tokens.version
                or self._roster.grades_mark != state.policies.grades_mark
            ):
                self.publish()
            try:
                await self._look_at_self()
            except Exception:  # otherwise no agent would be monitored any more
                log.exception("own state not noted")
            await self._pause(interval_s)

    def _forgive(self, now_s: float, pause_s: float) -> None:
        """An own pause is not silence of others. The interval around it is: otherwise a leader that
        is paused again and again would never mark a dead agent down."""
        self._heard_s = {
            slot: min(heard_s + pause_s, now_s) for slot, heard_s in self._heard_s.items()
        }

    async def _look_at_self(self) -> None:
        self._roster.inline_room = self._inline_room()
        self._roster.relief = self._relief()
        self._roster.unsteady = self._unsteady()
        self._roster.upkeep_pace = self._upkeep_pace()
        await self._note_self()
        await self._limit_namespace()

    async def _note_self(self) -> None:
        """A former leader may have marked this agent down or slow. Nobody else would undo it."""
        mine = self._replica.state.agents.get(self._slot)
        pulse = self.pulses[self._slot] = self._member.vital_signs()
        if mine is None:
            return
        await self._note(mine, pulse)
        if mine.slow:  # not slow for the voters, or it would not lead: its own beats take 0 s
            now_s = asyncio.get_running_loop().time()
            if self._replica.is_outpaced:
                self._slowness.forget(self._slot)
            else:
                await self._weigh(mine, began_s=now_s, ended_s=now_s)

    async def _limit_namespace(self) -> None:
        """Sets the limit at which all voters refuse to let the namespace grow, so that it does not
        become too large for any of them."""
        state, mine = self._replica.state, self.pulses[self._slot]
        voters = [self.pulses[slot] for slot in range(self._replica.voters) if slot in self.pulses]
        limit = namespace_limit(
            bytes_max=mine.bytes_max,
            namespace_bytes=state.bytes_used,
            voters=[pulse.memory for pulse in voters],
            before=state.bytes_max,
        )
        if limit != state.bytes_max:
            await self._try(c.Limit(limit))

    async def _pause(self, interval_s: float) -> None:
        self._wake.clear()
        timer = asyncio.get_running_loop().call_later(interval_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def stop(self) -> None:
        for task in list(self._beating.values()):
            task.cancel()

    async def _beat(self, agent: AgentInfo) -> None:
        try:
            await self._beat_until_current(agent)
        finally:
            self._beating.pop(agent.slot, None)

    async def _beat_until_current(self, agent: AgentInfo) -> None:
        """Beats until the agent has the current roster and does not seem slow, or does not
        answer."""
        self._heard_s.setdefault(agent.slot, asyncio.get_running_loop().time())
        attempts = 0
        while True:
            started_s = asyncio.get_running_loop().time()
            try:
                pulse = await self._peers.beat(
                    agent, self._beat_for(agent), timeout_s=self._timeout_s
                )
                ended_s = asyncio.get_running_loop().time()
            except Unavailable as error:
                attempts += 1
                took_s = asyncio.get_running_loop().time() - started_s
                refused = took_s < self._timeout_s / 2
                self._slowness.forget(agent.slot)
                if attempts == 1 and refused:
                    continue  # the stream broke; only a refused new one counts
                await self._judge(agent, refused, error)
                return
            if self._is_over(agent, pulse):
                await self._judge(agent, True, Unavailable("another process is at its address"))
                return
            await self._note(agent, pulse)
            await self._weigh(agent, began_s=started_s, ended_s=ended_s)
            state = self._replica.state
            current = (
                pulse.roster_version >= state.roster_version
                and pulse.revoked_version >= state.tokens.version
            )
            if current and not self._slowness.suspects(agent.slot):
                return

    def _is_over(self, agent: AgentInfo, pulse: Pulse) -> bool:
        """Whether a newer process answers while the roster still has the old one. The new process
        joins by itself, but may need long to recover, and has none of the shards."""
        current = self._replica.state.agents.get(agent.slot)
        return current is not None and pulse.boot != current.boot == agent.boot

    def _beat_for(self, agent: AgentInfo) -> Beat:
        state = self._replica.state
        known = self.pulses.get(agent.slot)
        if known is not None and known.boot != agent.boot:
            known = None
        fresh = known is not None and known.roster_version == state.roster_version
        policies = state.policies
        graded = (known.grades_mark if known is not None else 0) == policies.grades_mark
        revoked, upto = state.tokens.revoked_after(
            known.revoked_version if known is not None else 0, limit=PART_MAX
        )
        return Beat(
            leader=self._slot,
            roster_version=state.roster_version,
            roster=None if fresh else self._told_roster(),
            inline_room=self._roster.inline_room,
            view=self._replica.view,
            revoked_version=state.tokens.version,
            revoked=tuple(revoked),
            revoked_upto=upto,
            tier=state.tier.uri if state.tier.attached else "",
            tier_options=state.tier.options,
            grades_mark=policies.grades_mark,
            grades=None if graded else policies.grades.rows,
            relief=self._relief(),
            unsteady=tuple(sorted(self._roster.unsteady)),
            memory=known.memory if known is not None else {},
            memory_version=known.memory_version if known is not None else 0,
            upkeep_pace=self._roster.upkeep_pace,
        )

    def _told_roster(self) -> tuple[AgentInfo, ...]:
        """The same object for all agents that get this version, so that it is encoded once."""
        state = self._replica.state
        if self._told_version != state.roster_version:
            self._told_version = state.roster_version
            self._told = tuple(state.agents.values())
        return self._told

    async def _judge(self, agent: AgentInfo, refused: bool, error: Unavailable) -> None:
        """After a beat without an answer: marks the agent down, or not yet."""
        self.pulses.pop(agent.slot, None)
        now_s = asyncio.get_running_loop().time()
        silent_s = now_s - self._heard_s.get(agent.slot, now_s)
        current = self._replica.state.agents.get(agent.slot)
        if current is None or current.boot != agent.boot or not current.up:
            return
        if refused or silent_s >= self._patience_s(now_s):
            log.warning("agent down slot=%s error=%s", slot_name(agent.slot), error)
            await self._try(c.AgentDown(agent.slot, agent.incarnation))

    def _patience_s(self, now_s: float) -> float:
        """How long an agent may take to answer. If most others do not answer at the same time,
        this process or the whole machine may lack CPU time: then they get longer."""
        agents = self._replica.state.agents.values()
        others = [agent.slot for agent in agents if agent.up and agent.slot != self._slot]
        late_s = now_s - self._timeout_s / 2
        silent = [slot for slot in others if self._heard_s.get(slot, now_s) < late_s]
        return self._timeout_s * (CROWD_PATIENCE if 2 * len(silent) > len(others) else 1)

    async def _note(self, agent: AgentInfo, pulse: Pulse) -> None:
        current = self._replica.state.agents.get(agent.slot)
        if current is None or pulse.boot != current.boot:
            return  # the roster is newer than this beat
        self._heard_s[agent.slot] = asyncio.get_running_loop().time()
        self.pulses[agent.slot] = pulse
        if not current.up:
            log.info("agent back slot=%s", slot_name(agent.slot))
            await self._try(
                c.AgentUp(
                    current.slot, current.boot, current.address, current.gateway,
                    current.socket, current.host, current.node, current.pid,
                )
            )  # fmt: skip

    async def _weigh(self, agent: AgentInfo, *, began_s: float, ended_s: float) -> None:
        """After a beat: marks the agent slow or healthy, if that has changed."""
        agents = self._replica.state.agents
        current = agents.get(agent.slot)
        if current is None or current.boot != agent.boot or not current.up:
            self._slowness.forget(agent.slot)
            return
        if not current.slow and ended_s - began_s <= LATE_S:
            self._slowness.note_prompt(agent.slot, took_s=ended_s - began_s)
            return
        marked = {a.slot for a in agents.values() if a.slow and a.up} | self._marking
        slow = self._slowness.note(
            agent.slot,
            began_s=began_s,
            ended_s=ended_s,
            slow=current.slow,
            slow_others=len(marked - {agent.slot}),
        )
        if slow is not None:
            what = "slow" if slow else "no longer slow"
            log.warning("agent %s slot=%s", what, slot_name(agent.slot))
            self._marking.add(agent.slot)
            try:
                await self._try(c.AgentSlow(agent.slot, current.incarnation, slow))
            finally:
                self._marking.discard(agent.slot)

    async def _try(self, command: c.Command) -> None:
        """If it fails, another leader decides for itself, or this one retries later."""
        try:
            await self._replica.execute(command)
        except DisklessError as error:
            log.info("membership not recorded command=%s error=%s", command, error)
