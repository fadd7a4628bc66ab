"""Brings agents whose Ray nodes are gone to others: the leader's work, through Ray.

Ray restarts an agent where it was, and gives it up when that node is gone. It acts for a leader
while that leads, knows of the cluster only what its ward tells, and asks Ray only while an agent
is down beyond `repair_delay`, or empty and about to end. A node is gone when Ray says so, or when
its raylet has not answered for long and another node is free. Then Ray is told to end the agent
that was there, which also ends one that was only cut off, as soon as it is back; so while stripes
are lost without the agents that are down, those of silent hosts are waited for: they may have
them.

Ray lets a name be taken once, so two leaders that overlap cannot start a slot twice. What is
started is a new life of its slot, with an empty memory; should the old one still run somewhere,
cut off, its words and its shards count for nothing. One that was started and does not join
holds nothing: it is ended, and tried elsewhere. Where its host does not have the cluster's keys
it gets a ticket for them. Nodes that Ray drains get no agents, and one there that has nothing left
is brought elsewhere before its node ends (`announcer` tells the leader of such nodes).
"""

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import msgspec
import ray

from diskless.agent.ports import Ward
from diskless.errors import DisklessError, LaunchFailed, Unavailable
from diskless.launch import actors, private_ray, probe, ray_link, seats, spread
from diskless.launch.announcer import Announcer
from diskless.launch.model import Identity
from diskless.launch.silences import Silences
from diskless.launch.spread import RayletReply
from diskless.launch.supply import Supply
from diskless.launch.unfit import UnfitNodes, doubled
from diskless.model import AgentInfo, slot_name

log = logging.getLogger(__name__)
T = TypeVar("T")

INTERVAL_S = 1.0
PATIENCE_S = 20.0
"""How long Ray may take for what is asked of it before `status` says that it is silent."""
ANSWER_S = 5.0
"""How long the event loop may take to say what holds."""
OFFER_PAUSE_S = 10.0
"""An agent without keys is not offered a ticket more often."""
JOIN_S_MIN = 90.0
JOIN_S_MAX = 900.0
"""How long one that is started again may take until it joins, twice as long after each time that
it was ended; then Ray is told to end it."""

NO_NODE = (
    "its host is gone or cut off and no other has room: start Ray on one "
    "(`ray start --address ...`), and it is started there"
)
NEEDED = (
    "its host is silent, and it may have the stripes that are lost without it: it is waited for. "
    "If it is gone for good, delete the files that can no longer be read"
)
RAY_SILENT = "it is down, and Ray, which could start it again, does not answer"


@dataclass(frozen=True, kw_only=True)
class DownAgents:
    """What the leader knows of agents that are down for too long."""

    agents: Mapping[int, AgentInfo]
    overdue: frozenset[int]
    emptied: frozenset[int] = frozenset()
    """Those whose ends are announced, and that have nothing left to move."""

    def without_homes(self, slots: Collection[int]) -> "DownAgents":
        """The same, but nobody looks for these where they were."""
        homeless = {s: msgspec.structs.replace(self.agents[s], node="") for s in slots}
        return replace(self, agents={**self.agents, **homeless})


class Start(NamedTuple):
    """An actor of a slot that has yet to join, and since when it is known."""

    actor: str
    since_s: float


class RayHosts:
    """Implements Hosts: what a leader's ward needs is done by a `Rehoster`, one for each view."""

    def __init__(self, identity: Identity, *, actor_class: type) -> None:
        """`actor_class` is what runs an agent in Ray."""
        self._identity = identity
        self._actor_class = actor_class

    async def look_after(self, ward: Ward) -> None:
        rehoster = Rehoster(self._identity, ward, actor_class=self._actor_class)
        async with asyncio.TaskGroup() as both:
            both.create_task(rehoster.run())
            both.create_task(Announcer(ward).run())


class Rehoster:
    def __init__(self, identity: Identity, ward: Ward, *, actor_class: type) -> None:
        self._identity = identity
        self._actor_class = actor_class
        self._ward = ward
        self._supply = Supply(identity, offers_max=sys.maxsize, pause_s=OFFER_PAUSE_S)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rehoster")
        self._silences = Silences()
        self._starts: dict[int, Start] = {}
        self._unfit = UnfitNodes()
        self._ended: Counter[int] = Counter()
        """How often an actor of a slot was ended here, so that nobody else starts it again."""
        self._complaint = ""
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Looks after lost agents until cancelled."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                try:
                    await self.look()
                except Exception:  # else the agent, and what it holds, would end with this
                    log.exception("agents not looked after")
        finally:
            self._thread.submit(self._supply.close)
            self._thread.shutdown(wait=False)

    async def look(self) -> None:
        """Once."""
        agents = self._ward.agents()
        self._ended = Counter({s: n for s, n in self._ended.items() if not agents[s].up})
        down = self._find_down()
        if down is None:
            self._ward.tell({})
            self._starts = {}
            self._silences = Silences()
        else:
            await self._look(down)

    def _find_down(self) -> DownAgents | None:
        """Nothing unless the leader may decide and there is somebody to look after."""
        if not self._ward.leads_majority():
            return None
        gone, emptied = self._ward.overdue(), self._ward.emptied()
        if not gone and not emptied:
            return None
        return DownAgents(agents=dict(self._ward.agents()), overdue=gone, emptied=emptied)

    async def _look(self, down: DownAgents) -> None:
        """Ray may take its time, or never answer: then that is what there is to say."""
        self._loop = asyncio.get_running_loop()
        work = self._loop.run_in_executor(self._thread, self._rehost, down)
        while not (await asyncio.wait([work], timeout=PATIENCE_S))[0]:
            self._ward.tell(dict.fromkeys(sorted(down.overdue), RAY_SILENT))
        self._ward.tell(work.result() if self._ward.leads_majority() else {})

    # On the thread: whatever Ray does there, the agent goes on.

    def _rehost(self, down: DownAgents) -> dict[int, str]:
        """Starts what can be started; says what becomes of each slot that has no node."""
        try:
            # Ray ends a process that waits for it in vain for too long: so it is not asked
            # while nothing listens there.
            ray_link.check_listening(ray_link.address_of(ray))
            said = self._act(down)
        except (DisklessError, ray.exceptions.RayError, TimeoutError, ConnectionError) as error:
            if str(error) != self._complaint:
                log.warning("agents not looked after error=%s", error)
            self._complaint = str(error)
            return dict.fromkeys(sorted(down.overdue), RAY_SILENT)
        except Exception:  # the edge of a thread; tried again in a moment
            log.exception("agents not looked after")
            return {}
        self._complaint = ""
        return said

    def _act(self, down: DownAgents) -> dict[int, str]:
        down = down.without_homes(self._ended.keys() & down.overdue)
        registered = spread.registered_nodes()
        draining = spread.draining_nodes()
        replies = spread.knock(registered, heard=self._on_loop(self._heard))
        gone = self._silences.look(replies, now_s=time.monotonic())
        needed = self._needed(gone, replies)
        gone -= needed
        nodes = [node for node in registered if node.id not in gone and node.id not in draining]
        by_id = {node.id: node for node in nodes}
        under_way = self._under_way(down, by_id, gone)
        passed = self._unfit.look(by_id, now_s=time.monotonic())
        unfit = {
            *passed,
            *(id_ for id_, reply in replies.items() if reply is not RayletReply.SERVES),
        }
        plan = seats.plan_rehosting(
            down.agents,
            overdue=down.overdue,
            nodes=nodes,
            under_way=under_way,
            unfit=unfit,
            one_host=self._identity.one_host,
        )
        nowhere = " and ".join(sorted(passed.values())) or NO_NODE
        said = dict.fromkeys(plan.homeless, nowhere)
        said |= {s: NEEDED for s in down.overdue if down.agents[s].node in needed}
        for slot, node in plan.moves.items():
            said[slot] = self._begin(slot, node, down, gone)
        self._forget({id_ for id_ in gone if replies[id_] is RayletReply.ENDED})
        for slot, node in under_way.items():
            if node is not None and down.agents[slot].node not in by_id:
                said[slot] = f"is started on {node.host}"
        self._give_keys(under_way)
        self._resettle(down, draining, nodes, unfit)
        return dict(sorted(said.items()))

    def _resettle(
        self,
        down: DownAgents,
        draining: Collection[str],
        nodes: Sequence[seats.RayNode],
        unfit: Collection[str],
    ) -> None:
        """Has an agent begin elsewhere that is empty and whose node Ray drains, if one is free:
        sooner than after its node has ended, and one after the other while all are up, so that
        no more than one voter is away."""
        slots = sorted(s for s in down.emptied if down.agents[s].node in draining)
        if not slots or not all(agent.up for agent in down.agents.values()):
            return
        plan = seats.plan_rehosting(
            down.agents,
            overdue=slots[:1],
            nodes=nodes,
            under_way={},
            unfit=unfit,
            one_host=self._identity.one_host,
        )
        for slot, node in plan.moves.items():
            self._move(slot, node, down)

    def _move(self, slot: int, node: seats.RayNode, down: DownAgents) -> None:
        seeds = {other: a.address for other, a in down.agents.items() if a.up and other != slot}
        try:
            probe.probe_nodes([node])
            row = actors.row_of(self._identity.settings.name, slot)
            if not row or slot not in self._on_loop(self._ward.emptied):
                return
            self._end(slot, row["ActorID"])
            self._create(slot, node, seeds)
        except (DisklessError, TimeoutError) as error:
            log.warning("not moved slot=%s node=%s error=%s", slot_name(slot), node.id, error)
            self._pass_over(node, str(error) or type(error).__name__)
        else:
            log.info("moved slot=%s host=%s node=%s", slot_name(slot), node.host, node.id)

    def _give_keys(self, slots: Collection[int]) -> None:
        """To agents that run and have none: Ray started them where there is no file."""
        states = actors.ask_quietly(self._identity, slots, timeout_s=INTERVAL_S)
        try:
            self._supply.tend(states.values())
        except LaunchFailed as error:
            log.warning("keys not passed on error=%s", error)

    def _heard(self) -> set[str]:
        """The nodes of agents that are up."""
        return {agent.node for agent in self._ward.agents().values() if agent.up}

    def _needed(self, gone: Collection[str], replies: Mapping[str, RayletReply]) -> set[str]:
        """Nodes that may come back with what the agents that are up do not have."""
        silent = {id_ for id_ in gone if replies[id_] is RayletReply.SILENT}
        return set() if not silent or self._on_loop(self._can_spare) else silent

    def _can_spare(self) -> bool:
        """Whether nothing is lost without the agents that are down."""
        return self._ward.can_spare(self._ward.overdue())

    def _under_way(
        self, down: DownAgents, nodes: Mapping[str, seats.RayNode], gone: Collection[str]
    ) -> dict[int, seats.RayNode | None]:
        """The slots that Ray has an actor for, and its node; not those on nodes that are gone."""
        found = {}
        starts = {}
        for slot in sorted(down.overdue):
            row = actors.row_of(self._identity.settings.name, slot)
            id_ = actors.home_of(row)
            if row and id_ not in gone:
                found[slot] = nodes.get(id_)
                if down.agents[slot].node not in nodes:
                    starts[slot] = self._started(slot, row.get("ActorID", ""), nodes.get(id_), down)
        self._starts = starts
        return found

    def _started(
        self, slot: int, actor: str, node: seats.RayNode | None, down: DownAgents
    ) -> Start:
        """Since when; one that takes too long is ended."""
        now_s = time.monotonic()
        start = self._starts.get(slot)
        if start is None or start.actor != actor:
            return Start(actor, now_s)
        patience_s = doubled(JOIN_S_MIN, self._ended[slot], JOIN_S_MAX)
        if now_s - start.since_s > patience_s and self._is_down(down.agents[slot]):
            self._end(slot, actor)
            if node is not None:
                self._pass_over(node, f"it did not join within {patience_s:g} s")
        return start

    def _is_down(self, agent: AgentInfo) -> bool:
        """Whether the leader still leads and that life of another is still down: Ray may have
        taken minutes. One that is back holds shards, which a new life would make worthless."""

        def is_down() -> bool:
            now = self._ward.agents().get(agent.slot)
            return (
                self._ward.leads_majority()
                and now is not None
                and not now.up
                and now.boot == agent.boot
            )

        return self._on_loop(is_down)

    def _on_loop(self, question: Callable[[], T]) -> T:
        """The answer from where the state changes, and not while it does."""

        async def answer() -> T:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(ANSWER_S)

    def _pass_over(self, node: seats.RayNode, why: str) -> str:
        """What there is to say of it."""
        return self._unfit.note(node, why, now_s=time.monotonic())

    def _begin(
        self, slot: int, node: seats.RayNode, down: DownAgents, gone: Collection[str]
    ) -> str:
        seeds = {other: agent.address for other, agent in down.agents.items() if agent.up}
        try:
            probe.probe_nodes([node])
            if not self._clear_way(slot, down, gone):
                return "was on its way back when it was to be started elsewhere"
            self._create(slot, node, seeds)
        except (DisklessError, TimeoutError) as error:
            log.warning("not re-hosted slot=%s node=%s error=%s", slot_name(slot), node.id, error)
            return self._pass_over(node, str(error) or type(error).__name__)
        log.info("re-hosted slot=%s host=%s node=%s", slot_name(slot), node.host, node.id)
        return f"is started on {node.host}"

    def _create(self, slot: int, node: seats.RayNode, seeds: Mapping[int, str]) -> None:
        """Raises LaunchFailed."""
        actors.create(self._actor_class, self._identity, {slot: node}, founding=False, seeds=seeds)

    def _clear_way(self, slot: int, down: DownAgents, gone: Collection[str]) -> bool:
        """Ends what Ray has on a node that is gone; False if that should not be any more."""
        row = actors.row_of(self._identity.settings.name, slot)
        home = actors.home_of(row)
        if home not in gone:
            return self._is_down(down.agents[slot])
        reply = spread.knock(spread.registered_nodes()).get(home)
        may_end = (
            reply is not RayletReply.SERVES
            and (reply is not RayletReply.SILENT or self._on_loop(self._can_spare))
            and self._is_down(down.agents[slot])
        )
        if may_end:
            self._end(slot, row["ActorID"])
        return may_end

    def _end(self, slot: int, actor: str) -> None:
        log.warning("given up slot=%s actor=%s", slot_name(slot), actor)
        self._ended[slot] += 1
        actors.give_up(self._identity.settings.name, slot, actor)

    def _forget(self, nodes: Collection[str]) -> None:
        """Has Ray take nodes for dead whose raylets have ended, where it does not do so itself:
        not while it has an actor there, which it would restart on any node that is alive to it,
        nor if an agent there is heard, so that the raylet cannot have ended."""
        if not nodes or private_ray.NODE_PATIENCE not in os.environ:
            return
        name = self._identity.settings.name
        slots = self._on_loop(lambda: list(self._ward.agents()))
        homes = {actors.home_of(actors.row_of(name, slot)) for slot in slots}
        for node in set(nodes) - homes - self._on_loop(self._heard):
            try:
                spread.forget(node)
            except Unavailable as error:
                log.warning("node not given up node=%s error=%s", node, error)
