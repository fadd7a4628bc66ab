"""What a leader does about lost agents, where Ray's part is played by us."""

import asyncio
import time
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from diskless.config import ClusterSettings, Tuning
from diskless.errors import LaunchFailed
from diskless.launch import agents, probe, ray_link, rehoster, spread
from diskless.launch.agents import Identity
from diskless.launch.rehoster import (
    CLOSED_S,
    JOIN_S_MAX,
    NO_NODE,
    RAY_SILENT,
    SILENT_S,
    UNFIT_S_MIN,
    Rehoster,
)
from diskless.launch.seats import RayNode
from diskless.launch.spread import Door
from diskless.model import AgentInfo
from tests.support import eventually

GONE, SPARE = RayNode("gone", "a", "10.0.0.1"), RayNode("spare", "b", "10.0.0.2")
IDENTITY = Identity(ClusterSettings(tuning=Tuning(repair_delay_s=1)), "c", "s")


def agent(slot: int, node: RayNode = GONE, *, up: bool = False) -> AgentInfo:
    return AgentInfo(
        slot=slot, incarnation=1, boot=f"b{slot}", address=f"at-{slot}", gateway="", socket="",
        host=node.host, node=node.id, pid=1, up=up, down_ms=0 if up else 1,
    )  # fmt: skip


class Ray:
    """What is asked of it, and what it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = [SPARE]
        self.rows: dict[int, dict[str, Any]] = {}
        self.created: list[tuple[int, str]] = []
        self.seeds: dict[int, str] = {}
        self.given_up: list[int] = []
        self.forgotten: list[str] = []
        self.doors: dict[str, Door] = {}
        """Of those that are not open."""
        self.while_probing = lambda: None
        monkeypatch.setattr(ray_link, "address_of", lambda _: "ray:1")
        monkeypatch.setattr(ray_link, "check_listening", lambda _: None)
        monkeypatch.setattr(spread, "registered_nodes", lambda: self.nodes)
        monkeypatch.setattr(spread, "knock", self._knock)
        monkeypatch.setattr(spread, "forget", self._forget)
        monkeypatch.setattr(agents, "wait_nameless", lambda *_: None)
        monkeypatch.setattr(agents, "row_of", lambda _, slot: self.rows.get(slot, {}))
        monkeypatch.setattr(probe, "probe_nodes", lambda _: self.while_probing())
        monkeypatch.setattr(agents, "create", self._create)
        monkeypatch.setattr(agents, "give_up", self._give_up)

    def _knock(self, nodes: list[RayNode]) -> dict[str, Door]:
        return {node.id: self.doors.get(node.id, Door.OPEN) for node in nodes}

    def _forget(self, id_: str) -> None:
        """What GCS does, as tests/hosts sees it."""
        self.forgotten.append(id_)
        self.nodes = [node for node in self.nodes if node.id != id_]
        self.rows = {s: r for s, r in self.rows.items() if r["Address"]["NodeID"] != id_}

    def _give_up(self, _: str, slot: int) -> None:
        self.given_up.append(slot)

    def _create(
        self, _: Identity, chosen: dict[int, RayNode], *, seeds: dict[int, str], **__: Any
    ) -> None:
        self.created += [(slot, node.id) for slot, node in chosen.items()]
        self.seeds = seeds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(rehoster, "time", SimpleNamespace(
        monotonic=lambda: now_s[0], time_ns=time.time_ns))  # fmt: skip
    return now_s


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return Ray(monkeypatch)


class World:
    def __init__(self, *known: AgentInfo) -> None:
        self.agents = {a.slot: a for a in known}
        self.node = SimpleNamespace(
            replica=SimpleNamespace(leads=True, state=SimpleNamespace(agents=self.agents)),
            unhosted={},
        )
        self.rehoster = Rehoster(IDENTITY, self.node, one_host=False)  # type: ignore[arg-type]

    def look(self) -> dict[int, str]:
        async def run() -> None:
            case = self.rehoster._case()
            assert case is not None
            await self.rehoster._look(case)

        asyncio.run(run())
        return dict(self.node.unhosted)


def test_a_lost_agent_begins_again_and_status_says_where(ray: Ray) -> None:
    elsewhere = RayNode("of the old Ray", "c", "10.0.0.3")
    world = World(agent(0), agent(1, elsewhere, up=True))
    assert world.look() == {0: f"begins again on {SPARE.host}"}
    assert ray.created == [(0, "spare")]
    assert ray.seeds == {1: "at-1"}, "whom it must find without this Ray"


def test_without_a_node_status_says_so(ray: Ray) -> None:
    ray.nodes = [RayNode("full", "c", "10.0.0.3")]
    world = World(agent(0), agent(1, ray.nodes[0], up=True))
    assert world.look() == {0: NO_NODE}
    assert ray.created == []


def test_nothing_is_done_while_nobody_is_lost_or_somebody_else_leads(ray: Ray) -> None:
    assert World(agent(0, up=True)).rehoster._case() is None
    world = World(agent(0))
    world.node.replica.leads = False
    assert world.rehoster._case() is None


@pytest.mark.parametrize("how", ["returned", "began anew", "deposed"])
def test_one_that_changed_while_ray_took_its_time_is_not_begun_again(ray: Ray, how: str) -> None:
    """It may hold shards that its next life would make worthless."""
    world = World(agent(0))

    def meanwhile() -> None:
        match how:
            case "returned":
                world.agents[0] = msgspec.structs.replace(world.agents[0], up=True)
            case "began anew":
                world.agents[0] = msgspec.structs.replace(world.agents[0], boot="new")
            case "deposed":
                world.node.replica.leads = False

    ray.while_probing = meanwhile
    said = world.look()
    assert ray.created == []
    assert bool(said) == (how != "deposed"), "only a leader's word counts"


def test_one_that_is_under_way_is_not_begun_twice(ray: Ray) -> None:
    ray.rows[0] = {"Address": {"NodeID": "spare"}}
    assert World(agent(0)).look() == {0: f"begins again on {SPARE.host}"}
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
    assert world.look() == {0: f"begins again on {SPARE.host}"}


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


@pytest.mark.parametrize("where", ["spare", "a node that is gone as well", None])
def test_one_that_begins_and_does_not_join_is_given_up_once_and_tried_elsewhere(
    ray: Ray, clock: list[float], where: str | None
) -> None:
    """Also one that Ray keeps on no node: it would be waited for in vain for ever."""
    other = RayNode("other", "c", "10.0.0.3")
    ray.nodes.append(other)
    ray.rows[0] = {"ActorID": "first", "Address": {"NodeID": where} if where else {}}
    world = World(agent(0))
    world.look()
    clock[0] += JOIN_S_MAX
    world.look()
    assert not ray.given_up, "it may take its time"
    clock[0] += 1
    world.look()
    assert ray.given_up == [0]
    world.look()
    assert ray.given_up == [0], "Ray may take its time to forget it"
    assert ray.created == []
    del ray.rows[0]
    if where != "spare":
        ray.nodes.remove(SPARE)
    assert world.look() == {0: f"begins again on {other.host}"}


def test_every_actor_has_its_own_time_to_join(ray: Ray, clock: list[float]) -> None:
    world = World(agent(0))
    for name in ("first", "second", "third"):
        ray.rows[0] = {"ActorID": name, "Address": {"NodeID": "spare"}}
        world.look()
        clock[0] += JOIN_S_MAX
    assert not ray.given_up


def test_one_that_ray_restarts_where_it_was_is_rays(ray: Ray, clock: list[float]) -> None:
    """It may hold shards still: only its node's loss makes it ours."""
    world = World(agent(0, SPARE))
    ray.rows[0] = {"ActorID": "first", "Address": {"NodeID": "spare"}}
    for _ in range(3):
        assert world.look() == {}
        clock[0] += JOIN_S_MAX
    assert not ray.given_up


def running_on(node: RayNode) -> dict[str, Any]:
    """As Ray describes an actor."""
    return {"ActorID": "first", "Address": {"NodeID": node.id}}


@pytest.mark.parametrize(("door", "patience_s"), [(Door.CLOSED, CLOSED_S), (Door.SILENT, SILENT_S)])
def test_a_node_that_does_not_answer_for_long_is_given_up_for_one_that_is_free(
    ray: Ray, clock: list[float], door: Door, patience_s: float
) -> None:
    """A Ray of ours takes it for alive, however long it is gone."""
    ray.nodes, ray.doors, ray.rows = [GONE, SPARE], {"gone": door}, {0: running_on(GONE)}
    world = World(agent(0))
    assert world.look() == {}
    clock[0] += patience_s - 1
    assert world.look() == {}
    assert not ray.forgotten
    clock[0] += 1
    assert world.look() == {0: f"begins again on {SPARE.host}"}
    assert ray.forgotten == ["gone"]
    assert ray.created == [(0, "spare")]


def test_a_node_that_answers_again_has_all_its_time_again(ray: Ray, clock: list[float]) -> None:
    ray.nodes, ray.rows = [GONE, SPARE], {0: running_on(GONE)}
    world = World(agent(0))
    for door in (Door.SILENT, Door.OPEN, Door.SILENT, Door.OPEN):
        ray.doors = {"gone": door}
        world.look()
        clock[0] += SILENT_S - 1
    assert not ray.forgotten


def test_a_node_that_is_cut_off_is_waited_for_while_no_other_is_free(
    ray: Ray, clock: list[float]
) -> None:
    """Its agent comes back with it, and with its shards; Ray's verdict would end both."""
    ray.nodes, ray.doors = [GONE, SPARE], {"gone": Door.SILENT}
    ray.rows = {0: running_on(GONE), 1: running_on(SPARE)}
    world = World(agent(0), agent(1, SPARE, up=True))
    world.look()
    clock[0] += 10 * SILENT_S
    assert world.look() == {0: NO_NODE}
    assert not ray.forgotten
    ray.doors = {}
    assert world.look() == {}, "Ray restarts it there, if it must be restarted"
    assert ray.created == []


def test_a_free_node_that_does_not_answer_is_not_chosen(ray: Ray, clock: list[float]) -> None:
    mute = RayNode("mute", "c", "10.0.0.3")
    for door in (Door.SILENT, Door.CLOSED):
        ray.nodes, ray.doors, ray.created = [mute, SPARE], {"mute": door}, []
        assert World(agent(0)).look() == {0: f"begins again on {SPARE.host}"}
        ray.nodes = [mute]
        assert World(agent(0)).look() == {0: NO_NODE}
        assert ray.created == [(0, "spare")]


def test_a_raylet_that_answers_in_the_place_of_a_dead_one_is_not_taken_for_it(
    ray: Ray, clock: list[float]
) -> None:
    """Where raylets have a fixed port: Ray has two nodes there, and one of them is dead."""
    old, new = (RayNode(id_, "a", "10.0.0.1", 7000) for id_ in ("old", "new"))
    ray.nodes, ray.rows = [old, new], {0: running_on(old)}
    world = World(agent(0, old))
    world.look()
    clock[0] += CLOSED_S
    assert world.look() == {0: f"begins again on {new.host}"}
    assert ray.forgotten == ["old"]
    assert ray.created == [(0, "new")]


def test_time_to_join_begins_anew_when_all_are_well(
    ray: Ray, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehoster, "INTERVAL_S", 0.001)
    ray.rows[0] = {"ActorID": "first", "Address": {"NodeID": "spare"}}
    world = World(agent(0))
    world.look()
    clock[0] += 2 * JOIN_S_MAX

    async def well_for_a_while() -> None:
        world.agents[0] = msgspec.structs.replace(agent(0), up=True)
        with suppress(TimeoutError):
            await asyncio.wait_for(world.rehoster.run(), 0.1)

    asyncio.run(well_for_a_while())
    assert not world.rehoster._starts
    assert not world.rehoster._quiet_since_s


def test_while_ray_takes_its_time_status_says_so(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehoster, "PATIENCE_S", 0.01)
    world = World(agent(0))
    ray.while_probing = lambda: eventually(lambda: world.node.unhosted == {0: RAY_SILENT})
    assert world.look() == {0: f"begins again on {SPARE.host}"}


def test_a_ray_that_does_not_answer_is_said_to_be_silent(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(ray_link, "check_listening", silent)
    assert World(agent(0)).look() == {0: RAY_SILENT}
