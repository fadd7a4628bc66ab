"""Brings agents whose Ray nodes are gone to others: the leader's work, through Ray.

Ray restarts an agent where it was, and gives it up when that node is gone. Every agent has
one of these; it acts only while its agent leads, and asks Ray only while an agent is down
beyond `repair_delay`. A node is gone when Ray says so, or when its raylet has not answered for
long and the agent can begin elsewhere: then Ray is told. Without such a place it is waited for,
since a host that was cut off comes back with its agent, unless Ray was told that it is dead.

Ray lets a name be taken once, so two leaders that overlap cannot start a slot twice. What is
started is a new life of its slot, with an empty memory; should the old one still run somewhere,
cut off, its words and its shards count for nothing. One that was started and does not join
holds nothing: it is ended, and tried elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import ray

from diskless.errors import DisklessError
from diskless.launch import ray_link, seats, spread
from diskless.launch.spread import Door
from diskless.model import AgentInfo, slot_name
from diskless.repair import overdue

if TYPE_CHECKING:
    from diskless.launch.agents import Identity
    from diskless.launch.node import Node

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
PATIENCE_S = 20.0
"""How long Ray may take for what is asked of it before `status` says that it is silent."""
UNFIT_S_MIN = 5.0
UNFIT_S_MAX = 120.0
"""How long a node is passed over on which an agent did not start: at first not for long, for
one that has just joined Ray is not known to all of it, then twice as long each time."""
CLOSED_S = 5.0
SILENT_S = 60.0
"""How long a node that does not answer is waited for: not for long if its host says that no
raylet listens there, longer if it says nothing, for then it may only be cut off."""
JOIN_S_MAX = 90.0
"""How long one that begins again may take until it joins; then Ray is told to forget it."""

NO_NODE = (
    "its host is gone or cut off and no other has room: start Ray on one "
    "(`ray start --address ...`), and it begins again there"
)
RAY_SILENT = "it is down, and Ray, which could start it again, does not answer"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the leader knows of agents that are down for too long."""

    agents: Mapping[int, AgentInfo]
    overdue: frozenset[int]


class Unfit(NamedTuple):
    """A node on which an agent did not start."""

    failures: int
    until_s: float
    why: str


class Start(NamedTuple):
    """An actor of a slot that has yet to join, and since when it is known."""

    actor: str
    since_s: float


class Rehoster:
    def __init__(self, identity: "Identity", node: "Node", *, one_host: bool) -> None:
        self._identity = identity
        self._node = node
        self._one_host = one_host
        self._unfit: dict[str, Unfit] = {}
        self._starts: dict[int, Start] = {}
        self._quiet_since_s: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rehoster")

    async def run(self) -> None:
        """Looks after lost agents until cancelled."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                case = self._case()
                if case is None:
                    self._node.unhosted = {}
                    self._starts, self._quiet_since_s = {}, {}
                else:
                    await self._look(case)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _case(self) -> Case | None:
        """Nothing unless this agent leads and there is somebody to look after."""
        if not self._node.replica.leads:
            return None
        agents = dict(self._node.replica.state.agents)
        delay_s = self._identity.settings.tuning.repair_delay_s
        gone = overdue(agents, now_ms=time.time_ns() // 1_000_000, delay_s=delay_s)
        return Case(agents=agents, overdue=gone) if gone else None

    async def _look(self, case: Case) -> None:
        """Ray may take its time, or never answer: then that is what there is to say."""
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._rehost, case)
        while not (await asyncio.wait([work], timeout=PATIENCE_S))[0]:
            self._node.unhosted = dict.fromkeys(sorted(case.overdue), RAY_SILENT)
        self._node.unhosted = work.result() if self._node.replica.leads else {}

    # On the thread: whatever Ray does there, the agent goes on.

    def _rehost(self, case: Case) -> dict[int, str]:
        """Starts what can be started; says what becomes of each slot that has no node."""
        try:
            # Ray ends a process that waits for it in vain for too long: so it is not asked
            # while nothing listens there.
            ray_link.check_listening(ray_link.address_of(ray))
            return self._act(case)
        except (DisklessError, ray.exceptions.RayError, TimeoutError, ConnectionError) as error:
            log.warning("agents not looked after error=%s", error)
            return dict.fromkeys(sorted(case.overdue), RAY_SILENT)
        except Exception:  # the edge of a thread; tried again in a moment
            log.exception("agents not looked after")
            return {}

    def _act(self, case: Case) -> dict[int, str]:
        registered = spread.registered_nodes()
        doors = spread.knock(registered)
        gone = self._gone(case, registered, doors)
        nodes = [node for node in registered if node.id not in gone]
        by_id = {node.id: node for node in nodes}
        under_way = self._under_way(case, by_id, gone)
        now_s = time.monotonic()
        self._unfit = {id_: unfit for id_, unfit in self._unfit.items() if id_ in by_id}
        passed = {id_: unfit for id_, unfit in self._unfit.items() if unfit.until_s > now_s}
        plan = seats.plan_rehosting(
            case.agents,
            overdue=case.overdue,
            nodes=nodes,
            under_way=under_way,
            unfit={*passed, *(id_ for id_, door in doors.items() if door is not Door.OPEN)},
            one_host=self._one_host,
        )
        nowhere = " and ".join(sorted(unfit.why for unfit in passed.values())) or NO_NODE
        said = dict.fromkeys(plan.homeless, nowhere)
        for slot, node in plan.moves.items():
            said[slot] = self._begin(slot, node, case, gone)
        for slot, node in under_way.items():
            if node is not None and case.agents[slot].node not in by_id:
                said[slot] = f"begins again on {node.host}"
        return dict(sorted(said.items()))

    def _gone(
        self, case: Case, nodes: Sequence[seats.RayNode], doors: Mapping[str, Door]
    ) -> set[str]:
        """Nodes that Ray takes for alive, and that have not answered for too long."""
        now_s = time.monotonic()
        lost = {case.agents[slot].node for slot in case.overdue}
        replaced = lost & spread.sharing_doors(nodes)
        closed = replaced | {id_ for id_, door in doors.items() if door is Door.CLOSED}
        silent = {id_ for id_, door in doors.items() if door is Door.SILENT} - closed
        since_s = {id_: self._quiet_since_s.get(id_, now_s) for id_ in closed | silent}
        self._quiet_since_s = since_s
        return {id_ for id_ in closed if now_s - since_s[id_] >= CLOSED_S} | {
            id_ for id_ in silent if now_s - since_s[id_] >= SILENT_S
        }

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
                node = nodes.get(id_)
                found[slot] = node
                if case.agents[slot].node not in nodes:
                    starts[slot] = self._started(slot, row.get("ActorID", ""), node)
        self._starts = starts
        return found

    def _started(self, slot: int, actor: str, node: seats.RayNode | None) -> Start:
        """Since when; one that takes too long is given up, and remembered as if it were new,
        for Ray may take a while to forget it."""
        from diskless.launch import agents

        now_s = time.monotonic()
        start = self._starts.get(slot)
        if start is None or start.actor != actor:
            return Start(actor, now_s)
        if now_s - start.since_s <= JOIN_S_MAX:
            return start
        where = node.host if node else "no node"
        log.warning("given up slot=%s host=%s: it did not join", slot_name(slot), where)
        agents.give_up(self._identity.settings.name, slot)
        if node is not None:
            self._pass_over(node, f"it did not join within {JOIN_S_MAX:g} s")
        return Start(actor, now_s)

    def _still_gone(self, agent: AgentInfo) -> bool:
        """Whether this agent leads and that life of another is still down.

        One that is back holds shards, which a new life of its slot would make worthless.
        """
        replica = self._node.replica
        now = replica.state.agents.get(agent.slot)
        return replica.leads and now is not None and not now.up and now.boot == agent.boot

    def _pass_over(self, node: seats.RayNode, why: str) -> str:
        """What there is to say of it."""
        before = self._unfit.get(node.id)
        failures = before.failures if before else 0
        until_s = time.monotonic() + min(UNFIT_S_MIN * 2.0**failures, UNFIT_S_MAX)
        said = f"does not start on {node.host}: {why}"
        self._unfit[node.id] = Unfit(failures + 1, until_s, said)
        return said

    def _begin(self, slot: int, node: seats.RayNode, case: Case, gone: Collection[str]) -> str:
        from diskless.launch import agents, probe

        seeds = {other: agent.address for other, agent in case.agents.items() if agent.up}
        try:
            probe.probe_nodes([node])
            if not self._still_gone(case.agents[slot]):  # Ray may have taken minutes.
                return "was on its way back when it should have begun again elsewhere"
            self._free_name(slot, gone)
            agents.create(
                self._identity,
                {slot: node},
                one_host=self._one_host,
                founding=False,
                seeds=seeds,
            )
        except (DisklessError, TimeoutError) as error:
            log.warning("not re-hosted slot=%s node=%s error=%s", slot_name(slot), node.id, error)
            return self._pass_over(node, str(error) or type(error).__name__)
        log.info("re-hosted slot=%s host=%s node=%s", slot_name(slot), node.host, node.id)
        return f"begins again on {node.host}"

    def _free_name(self, slot: int, gone: Collection[str]) -> None:
        """Ray still has an actor for it if it takes that one's node for alive."""
        from diskless.launch import agents

        name = self._identity.settings.name
        home = agents.home_of(agents.row_of(name, slot))
        if home in gone:
            log.warning("node given up slot=%s node=%s", slot_name(slot), home)
            spread.forget(home)
            agents.wait_nameless(name, slot)
