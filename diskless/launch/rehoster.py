"""Brings agents whose Ray nodes are gone to others: the leader's work, through Ray.

Ray restarts an agent where it was, and gives it up when that node is gone. It acts for a leader
while that leads, knows of the cluster only what its ward tells, and asks Ray only while an agent
is down beyond `repair_delay`. A node is gone when Ray says so, or when its raylet has not
answered for long and another node is free. Then Ray is told to end the agent that was there,
which also ends one that was only cut off, as soon as it is back; so while stripes are lost
without the agents that are down, those of silent hosts are waited for: they may have them.

Ray lets a name be taken once, so two leaders that overlap cannot start a slot twice. What is
started is a new life of its slot, with an empty memory; should the old one still run somewhere,
cut off, its words and its shards count for nothing. One that was started and does not join
holds nothing: it is ended, and tried elsewhere. Where its host does not have the cluster's keys
it gets a ticket for them.
"""

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import ray

from diskless.agent.ports import Ward
from diskless.errors import DisklessError, LaunchFailed, Unavailable
from diskless.launch import private_ray, ray_link, seats, spread
from diskless.launch.quiet import Quiet
from diskless.launch.spread import Door
from diskless.launch.supply import Supply
from diskless.model import AgentInfo, slot_name

if TYPE_CHECKING:
    from diskless.launch.agents import Identity

log = logging.getLogger(__name__)
T = TypeVar("T")

INTERVAL_S = 1.0
PATIENCE_S = 20.0
"""How long Ray may take for what is asked of it before `status` says that it is silent."""
ANSWER_S = 5.0
"""How long the event loop may take to say what is the case."""
UNFIT_S_MIN = 5.0
UNFIT_S_MAX = 120.0
"""How long a node is passed over on which an agent did not start: at first not for long, for
one that has just joined Ray is not known to all of it, then twice as long each time."""
OFFER_PAUSE_S = 10.0
"""An agent without keys is not offered a ticket more often."""
JOIN_S_MIN = 90.0
JOIN_S_MAX = 900.0
"""How long one that begins again may take until it joins, twice as long after each time that
it was ended; then Ray is told to end it."""

NO_NODE = (
    "its host is gone or cut off and no other has room: start Ray on one "
    "(`ray start --address ...`), and it begins again there"
)
NEEDED = (
    "its host is silent, and it may have the stripes that are lost without it: it is waited for. "
    "If it is gone for good, delete the files that can no longer be read"
)
RAY_SILENT = "it is down, and Ray, which could start it again, does not answer"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the leader knows of agents that are down for too long."""

    agents: Mapping[int, AgentInfo]
    overdue: frozenset[int]

    def without_homes(self, slots: Collection[int]) -> "Case":
        """The same, but nobody looks for these where they were."""
        homeless = {s: msgspec.structs.replace(self.agents[s], node="") for s in slots}
        return replace(self, agents={**self.agents, **homeless})


class Unfit(NamedTuple):
    """A node on which an agent did not start."""

    failures: int
    until_s: float
    why: str


class Start(NamedTuple):
    """An actor of a slot that has yet to join, and since when it is known."""

    actor: str
    since_s: float


class RayHosts:
    """Implements Hosts: what a leader's ward needs is done by a `Rehoster`, one for each view."""

    def __init__(self, identity: "Identity") -> None:
        self._identity = identity

    async def look_after(self, ward: Ward) -> None:
        await Rehoster(self._identity, ward).run()


class Rehoster:
    def __init__(self, identity: "Identity", ward: Ward) -> None:
        self._identity = identity
        self._ward = ward
        self._supply = Supply(identity, offers_max=sys.maxsize, pause_s=OFFER_PAUSE_S)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rehoster")
        self._quiet = Quiet()
        self._starts: dict[int, Start] = {}
        self._unfit: dict[str, Unfit] = {}
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
        case = self._case()
        if case is None:
            self._ward.tell({})
            self._starts = {}
            self._quiet = Quiet()
        else:
            await self._look(case)

    def _case(self) -> Case | None:
        """Nothing unless the leader may decide and there is somebody to look after."""
        gone = self._ward.overdue() if self._ward.rules() else None
        return Case(agents=dict(self._ward.agents()), overdue=gone) if gone else None

    async def _look(self, case: Case) -> None:
        """Ray may take its time, or never answer: then that is what there is to say."""
        self._loop = asyncio.get_running_loop()
        work = self._loop.run_in_executor(self._thread, self._rehost, case)
        while not (await asyncio.wait([work], timeout=PATIENCE_S))[0]:
            self._ward.tell(dict.fromkeys(sorted(case.overdue), RAY_SILENT))
        self._ward.tell(work.result() if self._ward.rules() else {})

    # On the thread: whatever Ray does there, the agent goes on.

    def _rehost(self, case: Case) -> dict[int, str]:
        """Starts what can be started; says what becomes of each slot that has no node."""
        try:
            # Ray ends a process that waits for it in vain for too long: so it is not asked
            # while nothing listens there.
            ray_link.check_listening(ray_link.address_of(ray))
            said = self._act(case)
        except (DisklessError, ray.exceptions.RayError, TimeoutError, ConnectionError) as error:
            if str(error) != self._complaint:
                log.warning("agents not looked after error=%s", error)
            self._complaint = str(error)
            return dict.fromkeys(sorted(case.overdue), RAY_SILENT)
        except Exception:  # the edge of a thread; tried again in a moment
            log.exception("agents not looked after")
            return {}
        self._complaint = ""
        return said

    def _act(self, case: Case) -> dict[int, str]:
        case = case.without_homes(self._ended.keys() & case.overdue)
        registered = spread.registered_nodes()
        doors = spread.knock(registered, heard=self._on_loop(self._heard))
        gone = self._quiet.look(doors, now_s=time.monotonic())
        needed = self._needed(gone, doors)
        gone -= needed
        nodes = [node for node in registered if node.id not in gone]
        by_id = {node.id: node for node in nodes}
        under_way = self._under_way(case, by_id, gone)
        passed = self._passed(by_id)
        plan = seats.plan_rehosting(
            case.agents,
            overdue=case.overdue,
            nodes=nodes,
            under_way=under_way,
            unfit={*passed, *(id_ for id_, door in doors.items() if door is not Door.OPEN)},
            one_host=self._identity.one_host,
        )
        nowhere = " and ".join(sorted(unfit.why for unfit in passed.values())) or NO_NODE
        said = dict.fromkeys(plan.homeless, nowhere)
        said |= {s: NEEDED for s in case.overdue if case.agents[s].node in needed}
        for slot, node in plan.moves.items():
            said[slot] = self._begin(slot, node, case, gone)
        self._forget({id_ for id_ in gone if doors[id_] is Door.CLOSED})
        for slot, node in under_way.items():
            if node is not None and case.agents[slot].node not in by_id:
                said[slot] = f"begins again on {node.host}"
        self._give_keys(under_way)
        return dict(sorted(said.items()))

    def _give_keys(self, slots: Collection[int]) -> None:
        """To agents that run and have none: Ray started them where there is no file."""
        from diskless.launch import agents

        states = agents.ask_quietly(self._identity, slots, timeout_s=INTERVAL_S)
        try:
            self._supply.tend(states.values())
        except LaunchFailed as error:
            log.warning("keys not passed on error=%s", error)

    def _heard(self) -> set[str]:
        """The nodes of agents that are up."""
        return {agent.node for agent in self._ward.agents().values() if agent.up}

    def _needed(self, gone: Collection[str], doors: Mapping[str, Door]) -> set[str]:
        """Nodes that may come back with what the agents that are up do not have."""
        silent = {id_ for id_ in gone if doors[id_] is Door.SILENT}
        return set() if not silent or self._on_loop(self._can_spare) else silent

    def _can_spare(self) -> bool:
        """Whether nothing is lost without the agents that are down."""
        return self._ward.can_spare(self._ward.overdue())

    def _passed(self, nodes: Collection[str]) -> dict[str, Unfit]:
        """The nodes that are passed over for now."""
        self._unfit = {id_: unfit for id_, unfit in self._unfit.items() if id_ in nodes}
        now_s = time.monotonic()
        return {id_: unfit for id_, unfit in self._unfit.items() if unfit.until_s > now_s}

    def _under_way(
        self, case: Case, nodes: Mapping[str, seats.RayNode], gone: Collection[str]
    ) -> dict[int, seats.RayNode | None]:
        """The slots that Ray has an actor for, and its node; not those on nodes that are gone."""
        from diskless.launch import agents

        found = {}
        starts = {}
        for slot in sorted(case.overdue):
            row = agents.row_of(self._identity.settings.name, slot)
            id_ = agents.home_of(row)
            if row and id_ not in gone:
                found[slot] = nodes.get(id_)
                if case.agents[slot].node not in nodes:
                    starts[slot] = self._started(slot, row.get("ActorID", ""), nodes.get(id_), case)
        self._starts = starts
        return found

    def _started(self, slot: int, actor: str, node: seats.RayNode | None, case: Case) -> Start:
        """Since when; one that takes too long is ended."""
        now_s = time.monotonic()
        start = self._starts.get(slot)
        if start is None or start.actor != actor:
            return Start(actor, now_s)
        patience_s = _doubled(JOIN_S_MIN, self._ended[slot], JOIN_S_MAX)
        if now_s - start.since_s > patience_s and self._is_down(case.agents[slot]):
            self._end(slot, actor)
            if node is not None:
                self._pass_over(node, f"it did not join within {patience_s:g} s")
        return start

    def _is_down(self, agent: AgentInfo) -> bool:
        """Whether the leader still leads and that life of another is still down: Ray may have
        taken minutes. One that is back holds shards, which a new life would make worthless."""

        def is_down() -> bool:
            now = self._ward.agents().get(agent.slot)
            return self._ward.rules() and now is not None and not now.up and now.boot == agent.boot

        return self._on_loop(is_down)

    def _on_loop(self, question: Callable[[], T]) -> T:
        """The answer from where the state changes, and not while it does."""

        async def answer() -> T:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(ANSWER_S)

    def _pass_over(self, node: seats.RayNode, why: str) -> str:
        """What there is to say of it."""
        before = self._unfit.get(node.id)
        failures = before.failures if before else 0
        until_s = time.monotonic() + _doubled(UNFIT_S_MIN, failures, UNFIT_S_MAX)
        said = f"does not start on {node.host}: {why}"
        self._unfit[node.id] = Unfit(failures + 1, until_s, said)
        return said

    def _begin(self, slot: int, node: seats.RayNode, case: Case, gone: Collection[str]) -> str:
        from diskless.launch import agents, probe

        seeds = {other: agent.address for other, agent in case.agents.items() if agent.up}
        try:
            probe.probe_nodes([node])
            if not self._clear_way(slot, case, gone):
                return "was on its way back when it should have begun again elsewhere"
            agents.create(
                self._identity,
                {slot: node},
                founding=False,
                seeds=seeds,
            )
        except (DisklessError, TimeoutError) as error:
            log.warning("not re-hosted slot=%s node=%s error=%s", slot_name(slot), node.id, error)
            return self._pass_over(node, str(error) or type(error).__name__)
        log.info("re-hosted slot=%s host=%s node=%s", slot_name(slot), node.host, node.id)
        return f"begins again on {node.host}"

    def _clear_way(self, slot: int, case: Case, gone: Collection[str]) -> bool:
        """Ends what Ray has on a node that is gone; False if that should not be any more."""
        from diskless.launch import agents

        row = agents.row_of(self._identity.settings.name, slot)
        home = agents.home_of(row)
        if home not in gone:
            return self._is_down(case.agents[slot])
        door = spread.knock(spread.registered_nodes()).get(home)
        may_end = (
            door is not Door.OPEN
            and (door is not Door.SILENT or self._on_loop(self._can_spare))
            and self._is_down(case.agents[slot])
        )
        if may_end:
            self._end(slot, row["ActorID"])
        return may_end

    def _end(self, slot: int, actor: str) -> None:
        from diskless.launch import agents

        log.warning("given up slot=%s actor=%s", slot_name(slot), actor)
        self._ended[slot] += 1
        agents.give_up(self._identity.settings.name, slot, actor)

    def _forget(self, nodes: Collection[str]) -> None:
        """Has Ray take nodes for dead whose raylets have ended, where it does not do so itself:
        not while it has an actor there, which it would restart on any node that is alive to it,
        nor if an agent there is heard, so that the raylet cannot have ended."""
        from diskless.launch import agents

        if not nodes or private_ray.NODE_PATIENCE not in os.environ:
            return
        name = self._identity.settings.name
        slots = self._on_loop(lambda: list(self._ward.agents()))
        homes = {agents.home_of(agents.row_of(name, slot)) for slot in slots}
        for node in set(nodes) - homes - self._on_loop(self._heard):
            try:
                spread.forget(node)
            except Unavailable as error:
                log.warning("node not given up node=%s error=%s", node, error)


def _doubled(first_s: float, times: int, most_s: float) -> float:
    return min(first_s * 2 ** min(times, 16), most_s)
