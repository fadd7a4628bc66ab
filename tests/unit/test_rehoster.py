"""What a leader does about lost agents, where Ray's part is played by us."""

import asyncio
from collections.abc import Collection, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from diskless.config import ClusterSettings, Tuning
from diskless.ends import Notice
from diskless.errors import LaunchFailed
from diskless.identity.keyfile import Keys
from diskless.launch import actors, probe, ray_link, rehoster, spread
from diskless.launch.model import AgentState, Identity
from diskless.launch.private_ray import NODE_PATIENCE
from diskless.launch.rehoster import (
    JOIN_S_MIN,
    NEEDED,
    NO_NODE,
    RAY_SILENT,
    Rehoster,
)
from diskless.launch.seats import RayNode
from diskless.launch.silences import PATIENCE_S
from diskless.launch.spread import RayletReply
from diskless.launch.supply import Supply
from diskless.launch.unfit import UNFIT_S_MIN
from diskless.model import AgentInfo
from tests.support import eventually

GONE, SPARE = RayNode("gone", "a", "10.0.0.1"), RayNode("spare", "b", "10.0.0.2")
KEYS = Keys(cluster="c", name="default", root="s")
IDENTITY = Identity(ClusterSettings(tuning=Tuning(repair_delay_s=1)), KEYS, one_host=False)
CLOSED_S, SILENT_S = PATIENCE_S[RayletReply.ENDED], PATIENCE_S[RayletReply.SILENT]


def agent(slot: int, node: RayNode = GONE, *, up: bool = False) -> AgentInfo:
    return AgentInfo(
        slot=slot, incarnation=1, boot=f"b{slot}", address=f"at-{slot}", gateway="", socket="",
        host=node.host, node=node.id, pid=1, up=up, down_ms=0 if up else 1,
    )  # fmt: skip


def running_on(node: RayNode | None) -> dict[str, Any]:
    """As Ray describes an actor."""
    return {"ActorID": "first", "Address": {"NodeID": node.id if node else ""}}


class Actor:
    """What a leader starts."""


class Ray:
    """What is asked of it, and what it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = [SPARE]
        self.rows: dict[int, dict[str, Any]] = {}
        self.created: list[tuple[int, str]] = []
        self.seeds: dict[int, str] = {}
        self.given_up: list[int] = []
        self.forgotten: list[str] = []
        self.replies: dict[str, RayletReply] = {}
        """Of those that are not open."""
        self.while_probing = lambda: None
        self.while_knocking = lambda: None
        monkeypatch.setattr(ray_link, "address_of", lambda _: "ray:1")
        monkeypatch.setattr(ray_link, "check_listening", lambda _: None)
        monkeypatch.setattr(spread, "registered_nodes", lambda: self.nodes)
        self.draining: dict[str, int] = {}
        monkeypatch.setattr(spread, "draining_nodes", lambda: self.draining)
        monkeypatch.setattr(spread, "knock", self._knock)
        monkeypatch.setattr(spread, "forget", self._forget)
        monkeypatch.setenv(NODE_PATIENCE, "10000000")
        monkeypatch.setattr(actors, "row_of", lambda _, slot: self.rows.get(slot, {}))
        monkeypatch.setattr(probe, "probe_nodes", lambda _: self.while_probing())
        monkeypatch.setattr(actors, "create", self._create)
        monkeypatch.setattr(actors, "give_up", self._give_up)
        self.states: dict[int, AgentState] = {}
        """What agents that run say of themselves."""
        self.supplied: list[int] = []
        monkeypatch.setattr(actors, "ask_quietly", self._ask)
        monkeypatch.setattr(Supply, "_hand_over", lambda _, slot, __: self.supplied.append(slot))
        monkeypatch.setattr(Supply, "_issue", lambda _: None)

    def _ask(self, _: Identity, slots: Collection[int], **__: Any) -> dict[int, AgentState]:
        return {slot: self.states[slot] for slot in slots if slot in self.states}

    def lose_node(self, reply: RayletReply) -> None:
        """Of slot 0; there is a spare one."""
        self.nodes, self.replies, self.rows = [GONE, SPARE], {"gone": reply}, {0: running_on(GONE)}

    def _knock(
        self, nodes: list[RayNode], *, heard: Collection[str] = ()
    ) -> dict[str, RayletReply]:
        self.while_knocking()
        shut = {id_: reply for id_, reply in self.replies.items() if id_ not in heard}
        return {node.id: shut.get(node.id, RayletReply.SERVES) for node in nodes}

    def _forget(self, id_: str) -> None:
        """What GCS does, as tests/hosts sees it."""
        assert not [r for r in self.rows.values() if r["Address"]["NodeID"] == id_], (
            "Ray would restart it on any node that is alive to Ray"
        )
        self.forgotten.append(id_)
        self.nodes = [node for node in self.nodes if node.id != id_]

    def _give_up(self, _: str, slot: int, actor: str) -> None:
        assert self.rows.pop(slot)["ActorID"] == actor
        self.given_up.append(slot)

    def _create(
        self,
        actor_class: type,
        _: Identity,
        chosen: dict[int, RayNode],
        *,
        seeds: dict[int, str],
        **__: Any,
    ) -> None:
        assert actor_class is Actor
        self.created += [(slot, node.id) for slot, node in chosen.items()]
        self.seeds = seeds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(rehoster, "time", SimpleNamespace(
        monotonic=lambda: now_s[0]))  # fmt: skip
    return now_s


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return Ray(monkeypatch)


class World:
    def __init__(self, *known: AgentInfo) -> None:
        self.known = {a.slot: a for a in known}
        self.spare = {0, 1}
        """Nothing is lost without these."""
        self.leads = True
        self.told: dict[int, str] = {}
        self.empty: set[int] = set()
        self.rehoster = Rehoster(IDENTITY, self, actor_class=Actor)

    def look(self) -> dict[int, str]:
        asyncio.run(self.rehoster.look())
        return self.told

    # As a leader's ward.

    def leads_majority(self) -> bool:
        return self.leads

    def agents(self) -> Mapping[int, AgentInfo]:
        return self.known

    def overdue(self) -> frozenset[int]:
        return frozenset(slot for slot, known in self.known.items() if not known.up)

    def can_spare(self, slots: frozenset[int]) -> bool:
        return slots <= self.spare

    def emptied(self) -> frozenset[int]:
        return frozenset(self.empty)

    async def announce(self, notices: Mapping[str, Notice]) -> None:
        raise AssertionError("for the announcer")

    def tell(self, homeless: Mapping[int, str]) -> None:
        self.told = dict(homeless)

    def look_for(self, clock: list[float], duration_s: float) -> dict[int, str]:
        """What it says in the end, having looked every second."""
        for _ in range(int(duration_s)):
            self.look()
            clock[0] += 1
        return self.look()


def test_a_lost_agent_begins_again_and_status_says_where(ray: Ray) -> None:
    elsewhere = RayNode("of the old Ray", "c", "10.0.0.3")
    world = World(agent(0), agent(1, elsewhere, up=True))
    assert world.look() == {0: f"is started on {SPARE.host}"}
    assert ray.created == [(0, "spare")]
    assert ray.seeds == {1: "at-1"}, "whom it must find without this Ray"


def test_without_a_node_status_says_so(ray: Ray) -> None:
    ray.nodes = [RayNode("full", "c", "10.0.0.3")]
    world = World(agent(0), agent(1, ray.nodes[0], up=True))
    assert world.look() == {0: NO_NODE}
    assert ray.created == []


def test_nothing_is_done_while_nobody_is_lost_or_somebody_else_leads(ray: Ray) -> None:
    assert World(agent(0, up=True)).rehoster._find_down() is None
    world = World(agent(0))
    world.leads = False
    assert world.rehoster._find_down() is None


@pytest.mark.parametrize("how", ["returned", "began anew", "deposed"])
def test_one_that_changed_while_ray_took_its_time_is_not_begun_again(ray: Ray, how: str) -> None:
    """It may hold shards that its next life would make worthless."""
    world = World(agent(0))

    def meanwhile() -> None:
        match how:
            case "returned":
                world.known[0] = msgspec.structs.replace(world.known[0], up=True)
            case "began anew":
                world.known[0] = msgspec.structs.replace(world.known[0], boot="new")
            case "deposed":
                world.leads = False

    ray.while_probing = meanwhile
    said = world.look()
    assert ray.created == []
    assert bool(said) == (how != "deposed"), "only a leader's word counts"


def test_one_that_runs_without_keys_gets_a_ticket_and_others_do_not(ray: Ray) -> None:
    for slot in (0, 1):
        ray.rows[slot] = running_on(SPARE)
    ray.states = {
        0: AgentState(slot=0, cluster_id="c", pid=1, error="no keys", wants_keys=True),
        1: AgentState(slot=1, cluster_id="c", pid=2),
    }
    world = World(agent(0, SPARE), agent(1, SPARE))
    world.look()
    world.look()
    assert ray.supplied == [0], "and it has a while to redeem it"
    ray.states[0] = AgentState(slot=0, cluster_id="other", pid=1, wants_keys=True)
    other = World(agent(0, SPARE))
    other.look()
    assert ray.supplied == [0], "keys are for agents of this cluster"


def test_one_that_is_under_way_is_not_begun_twice(ray: Ray) -> None:
    ray.rows[0] = {"Address": {"NodeID": "spare"}}
    assert World(agent(0)).look() == {0: f"is started on {SPARE.host}"}
    assert ray.created == []


def test_a_node_where_agents_do_not_start_is_passed_over_and_status_goes_on_saying_why(
    ray: Ray, clock: list[float]
) -> None:
    def fails() -> None:
        raise LaunchFailed("diskless is not installed")

    ray.while_probing = fails
    world = World(agent(0))
    why = {0: f"does not start on {SPARE.host}: diskless is not installed"}
    assert world.look() == why
    ray.while_probing = lambda: None
    assert world.look() == why
    assert ray.created == []
    clock[0] += UNFIT_S_MIN
    assert world.look() == {0: f"is started on {SPARE.host}"}


def test_a_node_that_takes_too_long_is_passed_over_too(ray: Ray, clock: list[float]) -> None:
    def fails() -> None:
        raise TimeoutError

    ray.while_probing = fails
    assert World(agent(0)).look() == {0: f"does not start on {SPARE.host}: TimeoutError"}


def test_a_node_that_failed_once_is_soon_tried_again_and_one_that_goes_on_failing_is_not(
    ray: Ray, clock: list[float]
) -> None:
    tried: list[float] = []

    def fails() -> None:
        tried.append(clock[0])
        raise LaunchFailed("its raylet is not ready")

    ray.while_probing = fails
    world = World(agent(0))
    while clock[0] < 1000:
        world.look()
        clock[0] += 1
    pauses = [later - sooner for sooner, later in pairwise(tried)]
    assert pauses[:6] == [5, 10, 20, 40, 80, 120]
    assert set(pauses[6:]) == {120}


# One that begins and does not join.


@pytest.mark.parametrize("where", [SPARE, None], ids=["on a node", "nowhere"])
def test_one_that_begins_and_does_not_join_is_ended_and_tried_elsewhere(
    ray: Ray, clock: list[float], where: RayNode | None
) -> None:
    """Also one that Ray keeps on no node: it would be waited for in vain forever."""
    other = RayNode("zzz, which would not be the first choice", "c", "10.0.0.3")
    ray.nodes.append(other)
    ray.rows[0] = running_on(where)
    world = World(agent(0))
    world.look_for(clock, JOIN_S_MIN)
    assert not ray.given_up, "it may take its time"
    world.look_for(clock, 1)
    assert ray.given_up == [0]
    chosen = other if where else SPARE
    assert world.look() == {0: f"is started on {chosen.host}"}
    assert ray.created == [(0, chosen.id)]


def test_one_that_was_ended_once_is_waited_for_longer(ray: Ray, clock: list[float]) -> None:
    """It may have much to fetch before it can join."""
    world = World(agent(0))
    ended_s = []
    for number in range(4):
        ray.rows[0] = {"ActorID": str(number), "Address": {"NodeID": "spare"}}
        began_s = clock[0]
        while len(ray.given_up) == number:
            world.look()
            clock[0] += 10
        ended_s.append(clock[0] - began_s)
    assert [round(took_s / JOIN_S_MIN) for took_s in ended_s] == [1, 2, 4, 8]


@pytest.mark.parametrize("how", ["joined", "deposed"])
def test_one_that_joins_while_ray_takes_its_time_is_not_ended(
    ray: Ray, clock: list[float], how: str
) -> None:
    world = World(agent(0))
    ray.rows[0] = running_on(SPARE)
    world.look_for(clock, JOIN_S_MIN)
    clock[0] += 1

    def meanwhile() -> None:
        if how == "joined":
            world.known[0] = msgspec.structs.replace(world.known[0], up=True)
        else:
            world.leads = False

    ray.while_knocking = meanwhile
    world.look()
    assert not ray.given_up


def test_every_actor_has_its_own_time_to_join(ray: Ray, clock: list[float]) -> None:
    world = World(agent(0))
    for name in ("first", "second", "third"):
        ray.rows[0] = {"ActorID": name, "Address": {"NodeID": "spare"}}
        world.look_for(clock, JOIN_S_MIN - 1)
    assert not ray.given_up


def test_one_that_ray_restarts_where_it_was_is_rays(ray: Ray, clock: list[float]) -> None:
    """It may hold shards still: only its node's loss makes it ours."""
    world = World(agent(0, SPARE))
    ray.rows[0] = running_on(SPARE)
    assert world.look_for(clock, 3 * JOIN_S_MIN) == {}
    assert not ray.given_up


@pytest.mark.parametrize("flicker", [False, True], ids=["", "it may have been deposed meanwhile"])
def test_one_that_was_ended_begins_again_also_if_its_old_node_is_back(
    ray: Ray, clock: list[float], flicker: bool
) -> None:
    """Its actor is gone, and nobody else would start it: it looks ended on purpose."""
    ray.lose_node(RayletReply.SILENT)
    world = World(agent(0))
    world.look_for(clock, SILENT_S)
    assert ray.created == [(0, "spare")]
    if flicker:
        world.leads = False
        world.look()
        world.leads = True
    ray.replies, ray.created = {}, []
    assert world.look() == {0: f"is started on {GONE.host}"}, "the first of two that are free"


# Nodes that do not answer, which a Ray of ours takes for alive however long they are gone.


@pytest.mark.parametrize(("reply", "patience_s"), PATIENCE_S.items(), ids=str)
def test_a_node_that_does_not_answer_for_long_is_given_up_for_one_that_is_free(
    ray: Ray, clock: list[float], reply: RayletReply, patience_s: float
) -> None:
    ray.lose_node(reply)
    world = World(agent(0))
    assert world.look_for(clock, patience_s - 1) == {}
    assert not ray.given_up
    assert world.look_for(clock, 1) == {0: f"is started on {SPARE.host}"}
    assert ray.given_up == [0]
    assert ray.created == [(0, "spare")]
    assert ray.forgotten == (["gone"] if reply is RayletReply.ENDED else []), (
        "one that is only silent may come back, free for others"
    )


@pytest.mark.parametrize("why", ["a neighbour was heard", "Ray decides by itself"])
def test_a_node_is_not_taken_for_dead_by_all_of_ray_without_need(
    ray: Ray, clock: list[float], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    ray.lose_node(RayletReply.ENDED)
    world = World(agent(0))
    if why == "a neighbour was heard":
        ray.while_probing = lambda: world.known.update({1: agent(1, GONE, up=True)})
    else:
        monkeypatch.delenv(NODE_PATIENCE)
    world.look_for(clock, CLOSED_S)
    assert ray.given_up == [0]
    assert ray.created
    assert not ray.forgotten


def test_a_node_where_an_agent_is_heard_is_there_whatever_its_raylet_says(
    ray: Ray, clock: list[float]
) -> None:
    ray.lose_node(RayletReply.ENDED)
    world = World(agent(0), agent(1, GONE, up=True))
    assert world.look_for(clock, SILENT_S) == {}
    assert not ray.given_up


def test_a_dead_node_that_had_no_agent_is_forgotten_too(ray: Ray, clock: list[float]) -> None:
    mute = RayNode("mute", "c", "10.0.0.3")
    ray.nodes, ray.replies = [mute], {"mute": RayletReply.ENDED}
    World(agent(0)).look_for(clock, CLOSED_S)
    assert ray.forgotten == ["mute"]


def test_a_dead_node_is_not_forgotten_while_ray_has_an_agent_there(
    ray: Ray, clock: list[float]
) -> None:
    """With no other free it stays; Ray would restart it anywhere."""
    ray.nodes, ray.replies, ray.rows = [GONE], {"gone": RayletReply.ENDED}, {0: running_on(GONE)}
    assert World(agent(0)).look_for(clock, 2 * CLOSED_S) == {0: NO_NODE}
    assert not ray.forgotten


def test_a_node_that_is_cut_off_is_waited_for_while_no_other_is_free(
    ray: Ray, clock: list[float]
) -> None:
    """Its agent comes back with it, and with its shards."""
    ray.nodes, ray.replies = [GONE, SPARE], {"gone": RayletReply.SILENT}
    ray.rows = {0: running_on(GONE), 1: running_on(SPARE)}
    world = World(agent(0), agent(1, SPARE, up=True))
    assert world.look_for(clock, 3 * SILENT_S) == {0: NO_NODE}
    assert not ray.given_up
    ray.replies = {}
    assert world.look() == {}, "Ray restarts it there, if it must be restarted"
    assert ray.created == []


def test_while_stripes_are_lost_agents_of_silent_hosts_are_waited_for(
    ray: Ray, clock: list[float]
) -> None:
    """They may have them; those whose raylets have ended do not."""
    silent, ended = RayNode("silent", "d", "10.0.0.4"), RayNode("ended", "e", "10.0.0.5")
    third = RayNode("third", "c", "10.0.0.3")
    ray.nodes = [silent, ended, SPARE, third]
    ray.replies = {"silent": RayletReply.SILENT, "ended": RayletReply.ENDED}
    ray.rows = {0: running_on(silent), 1: running_on(ended)}
    world = World(agent(0, silent), agent(1, ended))
    world.spare = set()
    said = world.look_for(clock, SILENT_S + 1)
    assert said[0] == NEEDED
    assert ray.given_up == [1]
    world.spare = {0, 1}
    world.look_for(clock, 1)
    assert ray.given_up == [1, 0]


def test_an_agent_that_is_needed_at_the_last_moment_is_not_ended(
    ray: Ray, clock: list[float]
) -> None:
    """Another one has crashed while Ray took its time."""
    ray.lose_node(RayletReply.SILENT)
    world = World(agent(0))
    ray.while_probing = world.spare.clear
    world.look_for(clock, SILENT_S)
    assert not ray.given_up
    assert ray.created == []


def test_a_node_that_answers_at_the_last_moment_keeps_its_agent(
    ray: Ray, clock: list[float]
) -> None:
    ray.lose_node(RayletReply.SILENT)
    world = World(agent(0))
    world.look_for(clock, SILENT_S - 1)
    clock[0] += 1
    ray.while_probing = ray.replies.clear
    assert "on its way back" in world.look()[0]
    assert not ray.given_up
    assert ray.created == []


def test_what_runs_on_a_living_node_is_never_ended_for_another(
    ray: Ray, clock: list[float]
) -> None:
    """The name may have been taken, on a node that lives, since the plan was made."""
    world = World(agent(0))

    def meanwhile() -> None:
        ray.rows[0] = running_on(SPARE)

    ray.while_probing = meanwhile
    world.look()
    assert not ray.given_up
    assert not ray.forgotten


def test_a_free_node_that_does_not_answer_is_not_chosen(ray: Ray, clock: list[float]) -> None:
    mute = RayNode("mute", "c", "10.0.0.3")
    for reply in (RayletReply.SILENT, RayletReply.ENDED):
        ray.nodes, ray.replies, ray.created = [mute, SPARE], {"mute": reply}, []
        assert World(agent(0)).look() == {0: f"is started on {SPARE.host}"}
        ray.nodes = [mute]
        assert World(agent(0)).look() == {0: NO_NODE}
        assert ray.created == [(0, "spare")]


def test_when_all_are_well_what_was_seen_is_forgotten(ray: Ray, clock: list[float]) -> None:
    ray.lose_node(RayletReply.SILENT)
    world = World(agent(0))
    for _ in range(3):
        world.look_for(clock, SILENT_S - 2)
        world.known[0] = msgspec.structs.replace(world.known[0], up=True)
        assert world.look() == {}
        world.known[0] = agent(0)
    assert not ray.given_up


def test_one_that_came_back_may_be_ended_on_purpose_later(ray: Ray, clock: list[float]) -> None:
    ray.lose_node(RayletReply.SILENT)
    world = World(agent(0))
    world.look_for(clock, SILENT_S)
    world.known[0] = agent(0, SPARE, up=True)
    world.look()
    world.known[0] = agent(0, SPARE)
    ray.created = []
    assert world.look_for(clock, 10) == {}
    assert ray.created == []


def test_a_node_that_goes_on_failing_for_months_stops_nothing(ray: Ray, clock: list[float]) -> None:
    def fails() -> None:
        raise LaunchFailed("diskless is not installed")

    ray.while_probing = fails
    world = World(agent(0))
    for _ in range(1100):
        assert "not installed" in world.look()[0]
        clock[0] += 121


def test_a_fault_in_looking_ends_nothing_but_the_look(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent would end with it, and all that it holds."""
    monkeypatch.setattr(rehoster, "INTERVAL_S", 0.001)
    world = World(agent(0))
    looks = []

    async def fails(_: object) -> None:
        looks.append(1)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(world.rehoster, "_look", fails)

    async def run() -> None:
        running = asyncio.create_task(world.rehoster.run())
        async with asyncio.timeout(60):
            while len(looks) < 2:
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(run())


def test_while_ray_takes_its_time_status_says_so(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehoster, "PATIENCE_S", 0.01)
    world = World(agent(0))
    ray.while_probing = lambda: eventually(lambda: world.told == {0: RAY_SILENT})
    assert world.look() == {0: f"is started on {SPARE.host}"}


def test_a_ray_that_does_not_answer_is_said_to_be_silent(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(ray_link, "check_listening", silent)
    assert World(agent(0)).look() == {0: RAY_SILENT}


# Nodes that Ray drains


THERE, OTHER = RayNode("there", "c", "10.0.0.3"), RayNode("other", "d", "10.0.0.4")


def draining_world(ray: Ray, *, empty: Collection[int]) -> World:
    """Slots 0 and 1 on nodes that Ray drains, 2 on another; one node is free."""
    world = World(agent(0, GONE, up=True), agent(1, THERE, up=True), agent(2, OTHER, up=True))
    world.empty = {*empty}
    ray.nodes = [GONE, THERE, OTHER, SPARE]
    ray.draining = {"gone": 1, "there": 0}
    ray.rows = {0: running_on(GONE), 1: running_on(THERE), 2: running_on(OTHER)}
    return world


def test_an_empty_agent_of_a_draining_node_is_moved_to_one_that_is_free_voters_first(
    ray: Ray,
) -> None:
    world = draining_world(ray, empty={0, 1})
    assert world.look() == {}
    assert (ray.given_up, ray.created) == ([0], [(0, "spare")])
    assert 0 not in ray.seeds, "it has ended"
    world.known[0] = agent(0, SPARE, up=False)
    world.empty = {1}
    world.look()
    assert ray.given_up == [0], "one after the other"


def test_one_that_still_has_something_or_has_nowhere_to_go_stays_until_its_node_ends(
    ray: Ray,
) -> None:
    world = draining_world(ray, empty=())
    world.look()
    world.empty = {0}
    ray.nodes.remove(SPARE)
    world.look()
    ray.nodes.append(SPARE)
    ray.draining = {}
    world.look()
    assert (ray.given_up, ray.created) == ([], [])


def test_one_that_got_something_at_the_last_moment_is_not_moved(ray: Ray) -> None:
    world = draining_world(ray, empty={0})
    ray.while_probing = world.empty.clear
    world.look()
    assert (ray.given_up, ray.created) == ([], [])


def test_a_lost_agent_does_not_begin_again_on_a_node_that_ray_drains(ray: Ray) -> None:
    world = World(agent(0), agent(1, SPARE, up=True))
    ray.nodes = [SPARE, OTHER]
    ray.draining = {"other": 1}
    assert world.look() == {0: NO_NODE}
    ray.draining = {}
    world.look()
    assert ray.created == [(0, "other")]
