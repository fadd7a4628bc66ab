"""This agent as a member of the cluster: joins it, and answers the leader's heartbeats.

The leader decides who is down and who is up again (`leading.monitor`).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from diskless.agent.hits import Hits
from diskless.agent.memory import Memory
from diskless.agent.ports import Beat, CopyCounts, Hold, Pulse
from diskless.agent.revoked import Revoked
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.shards import ShardStore
from diskless.agent.sweeper import Sweeper
from diskless.agent.ticking import rest
from diskless.agent.tiers import Tiers
from diskless.errors import DisklessError
from diskless.model import AgentInfo, LoopLag, TrafficCounts, slot_name
from diskless.namespace import commands as c
from diskless.policy import Grades

log = logging.getLogger(__name__)

JOIN_PAUSE_S = 0.2
DAMAGED_PER_PULSE = 256


class Member:
    """This agent, as the leader knows it."""

    def __init__(
        self,
        *,
        roster: Roster,
        shards: ShardStore,
        memory: Memory,
        sweeper: Sweeper,
        holds: Callable[[], Iterable[Hold]],
        messages_sent: Callable[[], int],
        corrupt_shards_seen: Callable[[], int],
        requests: Callable[[], int],
        loop_lag: Callable[[], LoopLag],
        revoked: Revoked,
        refused: Callable[[], dict[str, int]],
        audit_dropped: Callable[[], int],
        tiers: Tiers,
        hits: Hits,
        copies: Callable[[], CopyCounts],
        http: Callable[[], str],
        traffic: Callable[[], TrafficCounts],
        retain: Callable[[Collection[str]], None],
        view: Callable[[], int],
        repair_delay_s: float,
    ) -> None:
        """`retain` is called with the addresses of all agents, to forget all others. `view` is the
        view of this agent's own voter: a leader gets no heartbeats of its own view. After
        `repair_delay_s` without a heartbeat this agent's shards may have been moved."""
        self._roster = roster
        self._shards = shards
        self._memory = memory
        self._sweeper = sweeper
        self._retain = retain
        self._holds = holds
        self._messages_sent = messages_sent
        self._corrupt_shards_seen = corrupt_shards_seen
        self._requests = requests
        self._loop_lag = loop_lag
        self.revoked = revoked
        self._refused = refused
        self._audit_dropped = audit_dropped
        self._tiers = tiers
        self._hits = hits
        self._copies = copies
        self._http = http
        self._traffic = traffic
        self.boot = ""
        self._repair_delay_s = repair_delay_s
        self._beaten_s: float | None = None
        self._own_view = view
        self._view = 0
        self._beats = 0
        self.joined = asyncio.Event()

    async def join(self, namespace: Router, me: c.AgentUp) -> None:
        """Joins the cluster, retrying until it succeeds. Then shards may be stored here."""
        self.boot = me.boot
        while self._shards.incarnation is None:
            try:
                self._shards.incarnation = (await namespace.run(me)).number
            except DisklessError as error:
                log.warning("join failed slot=%s error=%s", slot_name(me.slot), error)
                await asyncio.sleep(JOIN_PAUSE_S)
        self._maybe_joined()
        log.info("joined slot=%s incarnation=%d", slot_name(me.slot), self._shards.incarnation)

    def pulse(self, beat: Beat) -> Pulse:
        """Applies the leader's news and answers with this agent's.

        A leader that was replaced without knowing it is ignored.
        """
        now_s = asyncio.get_running_loop().time()
        if self._beaten_s is not None and now_s - self._beaten_s > self._repair_delay_s:
            self._shards.doubt_all()  # this process may have been suspended without knowing it
        self._beaten_s = now_s
        if beat.view < max(self._view, self._own_view()):
            return self.vital_signs()
        self._view = beat.view
        self._beats += 1
        self._roster.leader = beat.leader
        self._roster.inline_room = beat.inline_room
        self._roster.relief = beat.relief
        self._roster.unsteady = frozenset(beat.unsteady)
        self._roster.upkeep_pace = beat.upkeep_pace
        self._tiers.learn(beat.tier, beat.tier_options)
        if beat.grades is not None:
            self._roster.grades, self._roster.grades_mark = Grades(beat.grades), beat.grades_mark
        self.revoked.learn(beat.revoked, upto=beat.revoked_upto, version=beat.revoked_version)
        if beat.roster is not None and self.revoked.known:
            # Without a roster an agent serves no clients: it does not know yet whom to refuse.
            self.learn(version=beat.roster_version, agents=beat.roster)
        return self.vital_signs()

    async def watch_leader(self, failure_timeout_s: float) -> None:
        """Forgets a leader that is silent. For agents without a voter; voters have their protocol
        for it."""
        while True:
            before = self._beats
            await rest(failure_timeout_s)
            if self._beats == before:
                self._roster.leader = None

    def learn(self, *, version: int, agents: Iterable[AgentInfo]) -> None:
        before = self._roster.agents.get(self._roster.slot)
        self._roster.update(version=version, agents=agents)
        self._retain(self._roster.addresses())
        after = self._roster.agents.get(self._roster.slot)
        if before is not None and after is not None:
            back = after.up and not before.up
            stays = before.ends_ms and not after.ends_ms
            if back or stays:
                self._shards.doubt_all()  # drop requests may have been missed
        self._maybe_joined()

    def vital_signs(self) -> Pulse:
        return Pulse(
            boot=self.boot,
            roster_version=max(self._roster.version, 0),
            shards=len(self._shards),
            memory=self._memory.latest(),
            memory_version=self._memory.version,
            bytes_max=self._memory.bytes_max,
            messages_sent=self._messages_sent(),
            corrupt_shards_seen=self._corrupt_shards_seen(),
            holds=tuple(self._holds()),
            damaged=tuple(self._shards.damaged(limit=DAMAGED_PER_PULSE)),
            requests=self._requests(),
            undecided=self._sweeper.undecided,
            unclaimed=self._sweeper.unclaimed,
            loop_lag=self._loop_lag(),
            revoked_version=self.revoked.version,
            refused=self._refused(),
            audit_dropped=self._audit_dropped(),
            tier=self._tiers.counts(),
            grades_mark=self._roster.grades_mark,
            cache=self._hits.tell(),
            http=self._http(),
            traffic=self._traffic(),
            copies=self._copies(),
        )

    def _maybe_joined(self) -> None:
        mine = self._roster.agents.get(self._roster.slot)
        if mine is not None and mine.incarnation == self._shards.incarnation:
            self.joined.set()
