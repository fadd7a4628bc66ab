"""What `durability=barrier` waits for: plans beyond the horizon, wherever they came from."""

import asyncio
from typing import Any

import pytest

from diskless import policy
from diskless.agent.leading.backlog import Backlog
from diskless.checksum import file_checksum
from diskless.errors import NotDurable, Superseded
from diskless.model import TierOptions
from diskless.namespace import commands as c
from diskless.namespace import plans as p
from diskless.namespace import queries as q
from diskless.namespace.replication.machine import NamespaceMachine

URI = "file:///t"


class World:
    """A namespace with a tier that has everything, and a leader's backlog."""

    def __init__(self, *, durability: str = "", barrier: str = "/c") -> None:
        self.machine = NamespaceMachine()
        self.op = 0
        self.sequence = 0
        self.session = self.apply(c.OpenSession("me")).number
        self.apply(c.AttachTier(URI, 1, 0, "", TierOptions(durability=durability)))
        if barrier:
            assert self.apply(c.SetPolicy(barrier, policy.DURABILITY, policy.BARRIER)).changed
        self.move_horizon()
        self.backlog = Backlog(world=self, now_s=lambda: 0.0)
        self.backlog.begin()

    @property
    def state(self) -> Any:
        return self.machine.state

    @property
    def plans(self) -> p.Plans:
        return self.state.tier.plans

    def apply(self, command: c.Command) -> Any:
        self.op += 1
        return self.machine.apply(self.op, self.op, self.op, c.encode(command))[0]

    def who(self) -> tuple[int, int]:
        self.sequence += 1
        return self.session, self.sequence

    def put(self, *paths: str) -> c.Commit:
        files = tuple(c.NewFile(path, 1, file_checksum(b"x"), b"x") for path in paths)
        return self.do(c.Commit((), (c.Put(*self.who(), True, files),)))

    def do(self, command: Any) -> Any:
        result = self.apply(command)
        assert isinstance(result, c.Done), result
        return command

    def move_horizon(self) -> None:
        tier = self.state.tier
        self.apply(c.Horizon(1, tier.number + 1, tier.change, self.op, 0, self.state.last_file))

    def stateful(self, *checkpoints: str) -> None:
        for checkpoint in checkpoints:
            self.do(c.Mkdirs(*self.who(), f"{checkpoint}/state/0/0"))
        self.move_horizon()

    def waits(self, command: c.Command) -> bool:
        """Whether a leader holds the answer back, and it comes with the horizon."""
        held = self.backlog.after(command)
        if held is None:
            return False
        held.close()  # type: ignore[attr-defined]
        return True

    def waits_to_open(self, path: str) -> bool:
        return self.backlog.before_answer(q.Open(path)) > 0

    def transferred(self) -> None:
        """The state comes from another voter."""
        fresh = NamespaceMachine()
        for chunk in self.machine.snapshot():
            fresh.restore(chunk)
        self.machine = fresh


def test_what_comes_after_a_plan_waits_for_it_and_the_plan_itself_does_not() -> None:
    world = World()
    world.stateful("/c")
    assert not world.waits(world.put("/c/sources/0/0"))
    assert not world.waits(world.put("/c/offsets/0"))
    effects = [world.put(f"/c/{name}") for name in ("state/0/0/1.delta", "commits/0", "x/y/z")]
    assert all(map(world.waits, effects))
    assert not world.waits(world.put("/elsewhere/state/1"))
    world.move_horizon()
    assert not any(map(world.waits, effects))
    assert not world.waits(world.put("/c/state/0/0/2.delta"))


def test_without_state_the_plan_itself_waits() -> None:
    world = World()
    plan = world.put("/c/offsets/0")
    assert world.waits(plan)
    world.do(c.Mkdirs(*world.who(), "/c/state"))
    assert not world.waits(plan)
    world.do(c.Delete(*world.who(), "/c/state", True))
    assert world.waits(plan)
    world.move_horizon()
    assert not world.waits(plan)


def test_a_plan_beyond_the_horizon_is_not_opened() -> None:
    world = World()
    world.stateful("/c")
    world.put("/c/offsets/0")
    world.move_horizon()
    world.put("/c/offsets/1", "/c/commits/1", "/elsewhere/offsets/1")
    assert world.waits_to_open("/c/offsets/1")
    assert not world.waits_to_open("/c/offsets/0"), "it is durable, whatever came later"
    for path in ("/c/commits/1", "/elsewhere/offsets/1", "/c/offsets/9", "/c/offsets"):
        assert not world.waits_to_open(path)
    world.move_horizon()
    assert not world.waits_to_open("/c/offsets/1")


def test_a_plan_that_is_renamed_to_its_place_counts_from_then_on() -> None:
    world = World()
    world.stateful("/c")
    world.put("/c/offsets/.0.tmp", "/c/commits/.0.tmp")
    world.move_horizon()
    world.do(c.Rename(*world.who(), "/c/offsets/.0.tmp", "/c/offsets/0", False))
    assert world.waits_to_open("/c/offsets/0")
    effect = world.do(c.Rename(*world.who(), "/c/commits/.0.tmp", "/c/commits/0", False))
    assert world.waits(effect)
    world.move_horizon()
    assert not world.waits(effect)
    assert not world.waits_to_open("/c/offsets/0")


def test_a_stateless_plan_that_is_renamed_to_its_place_waits() -> None:
    world = World()
    world.put("/c/offsets/.0.tmp")
    world.move_horizon()
    assert world.waits(world.do(c.Rename(*world.who(), "/c/offsets/.0.tmp", "/c/offsets/0", False)))


@pytest.mark.parametrize("verb", ["rename", "rename above", "clone", "rollback", "cut"])
def test_a_checkpoint_that_came_as_a_whole_is_a_plan(verb: str) -> None:
    world = World()
    world.stateful("/c/a/q")
    world.put("/c/a/q/offsets/0", "/c/a/q/state/0/0/1.delta")
    world.do(c.CreateSnapshot(*world.who(), ("/c/a",), "s", verb == "cut"))
    world.put("/c/a/q/offsets/1")
    if verb.startswith("rename"):
        world.do(c.DeleteSnapshots(*world.who(), "/c/a", ("s",)))
    world.move_horizon()
    source, target = ("/c/a", "/c/b") if verb != "rename" else ("/c/a/q", "/c/b")
    if verb in ("rename", "rename above"):
        world.do(c.Rename(*world.who(), source, target, False))
    elif verb == "clone":
        world.do(c.Clone(*world.who(), source, target))
    else:
        world.do(c.Rollback(*world.who(), "/c/a", "s", verb == "cut"))
        target = "/c/a"
    place = target if verb == "rename" else f"{target}/q"
    assert world.waits_to_open(f"{place}/offsets/0")
    assert world.waits(world.put(f"{place}/commits/0"))
    world.move_horizon()
    assert not world.waits_to_open(f"{place}/offsets/0")
    assert not world.waits(world.put(f"{place}/commits/0"))


def test_offsets_that_are_deleted_and_made_again_are_plans_again() -> None:
    world = World()
    world.stateful("/c")
    world.put("/c/offsets/0")
    world.move_horizon()
    world.do(c.Delete(*world.who(), "/c/offsets", True))
    assert not world.waits(world.put("/c/commits/0"))
    world.put("/c/offsets/0")
    assert world.waits(world.put("/c/commits/0"))


def test_queries_below_one_parent_wait_for_their_own_plans_alone() -> None:
    world = World()
    world.stateful("/c/a", "/c/b")
    world.put("/c/a/offsets/0")
    assert not world.waits(world.put("/c/b/state/0/0/1.delta"))
    assert not world.waits(world.put("/c/b/offsets/0"))
    assert world.waits(world.put("/c/a/state/0/0/1.delta"))


def test_a_checkpoint_within_a_checkpoint_waits_for_both() -> None:
    world = World()
    world.stateful("/c", "/c/inner")
    world.put("/c/offsets/0")
    assert world.waits(world.put("/c/inner/state/0/0/1.delta"))
    world.move_horizon()
    world.put("/c/inner/offsets/0")
    assert world.waits(world.put("/c/inner/state/0/0/1.delta"))
    assert not world.waits(world.put("/c/state/0/0/1.delta"))


def test_a_checkpoint_that_is_itself_named_offsets() -> None:
    world = World()
    world.do(c.Mkdirs(*world.who(), "/c/offsets/offsets"))
    world.stateful("/c/offsets")
    assert not world.waits(world.put("/c/offsets/state/0/0/1.delta"))
    assert not world.waits(world.put("/c/offsets/offsets/0"))
    assert world.waits(world.put("/c/offsets/state/0/0/1.delta"))
    assert world.waits_to_open("/c/offsets/offsets/0")


def test_a_checkpoint_at_the_root() -> None:
    world = World(durability=policy.BARRIER, barrier="")
    assert world.waits(world.put("/offsets/0"))
    world.stateful("")
    assert not world.waits(world.put("/offsets/1"))
    assert world.waits(world.put("/commits/1"))


def test_the_plan_and_an_effect_in_one_put_wait() -> None:
    world = World()
    world.stateful("/c")
    assert world.waits(world.put("/c/offsets/0", "/c/commits/0"))


@pytest.mark.parametrize("before", ["", policy.ASYNC])
def test_a_policy_that_is_set_on_a_live_tree_waits_for_what_was_planned_before(before: str) -> None:
    world = World(barrier="")
    if before:
        world.apply(c.SetPolicy("/c/q", policy.DURABILITY, before))
    world.stateful("/c/q")
    world.put("/c/q/offsets/0")
    effect = world.put("/c/q/commits/0")
    assert not world.waits(effect)
    world.apply(c.SetPolicy("/c", policy.DURABILITY, policy.BARRIER))
    if before:
        assert not world.waits(effect)
        world.apply(c.RemovePolicy("/c/q", ""))
    assert world.waits(effect)
    assert world.waits_to_open("/c/q/offsets/0")
    world.move_horizon()
    assert not world.waits(effect)


def test_a_plan_of_another_durability_is_waited_for_where_the_effect_asks_for_it() -> None:
    world = World()
    world.apply(c.SetPolicy("/c/offsets", policy.DURABILITY, policy.ASYNC))
    world.stateful("/c")
    world.put("/c/offsets/0")
    assert world.waits(world.put("/c/commits/0"))


def test_what_was_planned_before_a_tier_was_attached_is_waited_for() -> None:
    world = World(barrier="")
    world.stateful("/c")
    world.put("/c/offsets/0")
    while world.apply(c.DetachTier()).number:
        pass
    world.put("/c/offsets/1")
    world.apply(c.AttachTier(URI, 2, 0, "", TierOptions(durability=policy.BARRIER)))
    assert world.waits_to_open("/c/offsets/1")
    assert world.waits(world.put("/c/commits/1"))


def test_barrier_needs_a_tier_and_keeps_it() -> None:
    world = World()
    refused = world.apply(c.DetachTier())
    assert "/c asks for durability=barrier" in refused.message
    world.apply(c.RemovePolicy("/c", ""))
    assert isinstance(world.apply(c.DetachTier()), c.Done)
    refused = world.apply(c.SetPolicy("/c", policy.DURABILITY, policy.BARRIER))
    assert "needs a durable tier" in refused.message


def test_whoever_leads_next_waits_too_also_with_a_state_by_transfer() -> None:
    world = World()
    world.stateful("/c", "/c/r")
    world.put("/c/r/offsets/0")
    world.do(c.Rename(*world.who(), "/c/r", "/c/s", False))
    world.put("/c/offsets/0")
    rows = list(world.plans.rows())
    world.transferred()
    assert list(world.plans.rows()) == rows
    assert world.plans.bytes_used > 0
    for path in ("/c/commits/0", "/c/s/commits/0"):
        assert world.waits(world.put(path))
    world.move_horizon()
    assert world.plans.bytes_used == len(world.plans) == 0


def test_a_plan_is_forgotten_as_soon_as_it_is_durable() -> None:
    world = World()
    world.stateful("/c")
    world.put("/c/offsets/0")
    assert len(world.plans) == 1
    world.move_horizon()
    assert world.plans.bytes_used == len(world.plans) == 0


def test_plans_without_room_make_all_wait() -> None:
    world = World()
    world.stateful("/c/q")
    world.put("/c/q/offsets/0")
    for n in range(p.ENTRIES_MAX):
        world.put(f"/many/{n}/offsets/0")
    assert len(world.plans) <= p.ENTRIES_MAX
    assert world.waits(world.put("/c/q/commits/0"))
    assert world.waits_to_open("/c/q/offsets/0")
    world.move_horizon()
    assert not world.waits(world.put("/c/q/commits/0"))


def test_a_plan_presses_before_anybody_waits_for_it() -> None:
    world = World()
    world.stateful("/c")
    world.waits(world.put("/c/sources/0/0"))
    assert not world.backlog.is_awaited
    world.waits(world.put("/c/offsets/0"))
    assert world.backlog.is_awaited
    world.move_horizon()
    assert not world.backlog.is_awaited


def test_an_effect_is_acknowledged_with_the_plan_and_need_not_be_durable_itself() -> None:
    async def check() -> None:
        world = World()
        world.stateful("/c")
        world.put("/c/offsets/0")
        planned, last_file = world.state.tier.change, world.state.last_file
        held = world.backlog.after(world.put("/c/commits/0"))
        assert held is not None
        task = asyncio.ensure_future(held)
        await asyncio.sleep(0)
        tier = world.state.tier
        world.apply(c.Horizon(1, tier.number + 1, planned, world.op, 0, last_file))
        world.backlog.moved()
        await task
        assert tier.horizon_change < tier.change

    asyncio.run(check())


def test_while_the_tier_is_silent_the_wait_ends_and_says_by_how_much_it_is_behind() -> None:
    async def check() -> None:
        world = World()
        world.put("/c/offsets/0")
        with pytest.raises(NotDurable, match=r"1 commands and 1 B behind"):
            await world.backlog.reach(world.state.tier.change, 0.01)

    asyncio.run(check())


def test_what_was_refused_for_being_superseded_is_not_kept() -> None:
    """An error that is raised again holds all frames that it came through before."""

    async def check() -> None:
        world = World()
        world.stateful("/c")
        effect = world.put("/c/commits/0")
        world.backlog.end(Superseded("another"))
        depths = []
        for _ in range(3):
            with pytest.raises(Superseded, match="another") as before:
                world.backlog.before(effect)
            with pytest.raises(Superseded, match="another") as after:
                await world.backlog.reach(world.state.tier.change + 1, 1.0)
            depths.append((len(before.traceback), len(after.traceback)))
        assert depths == [depths[0]] * 3

    asyncio.run(check())


def test_who_was_superseded_acknowledges_nothing_more() -> None:
    world = World()
    world.stateful("/c")
    effect, other = world.put("/c/commits/0"), world.put("/elsewhere")
    world.backlog.end(Superseded("another"))
    with pytest.raises(Superseded):
        world.backlog.before(effect)
    assert world.backlog.before(other) is None
    assert world.waits(effect)
