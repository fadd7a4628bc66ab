"""What a path asks for: inheritance, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless import policy
from diskless.errors import BadRequest, CapacityExceeded, DisklessError, ReadOnly
from diskless.namespace import answers, policies
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from tests.unit.test_namespace_world import World, check_counts

TABLE = {"/": {"durability": "async"}, "/a/b": {"durability": "sync"}}
paths = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/" + "/".join(parts))
tables = st.dictionaries(paths, st.sampled_from(policy.DURABILITIES))


def set_of(path: str, value: str = "async", key: str = "durability") -> c.SetPolicy:
    return c.SetPolicy(path, key, value, "ann")


def tiered() -> World:
    world = World()
    world.do(c.AttachTier("file:///t", 1, 0))
    return world


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("async", "/")),
        ("/a", ("async", "/")),
        ("/a/b", ("sync", "/a/b")),
        ("/a/b/c/d", ("sync", "/a/b")),
        ("/a/bc", ("async", "/")),
        ("/a/b/.snapshot/s/x", ("sync", "/a/b")),
    ],
)
def test_the_nearest_path_above_decides(path: str, expected: tuple[str, str]) -> None:
    assert policy.effective(TABLE, path, "durability", default="memory") == expected


def test_with_nothing_set_it_is_the_default_from_nowhere() -> None:
    assert policy.effective({}, "/a/b", "durability", default="memory") == ("memory", "")


@given(tables, paths)
def test_it_is_the_longest_of_all_paths_that_lead_to_it(table: dict[str, str], path: str) -> None:
    rows = {own: {policy.DURABILITY: value} for own, value in table.items()}
    above = [own for own in table if own in ("/", path) or path.startswith(own + "/")]
    nearest = max(above, key=len, default="")
    found = policy.effective(rows, path, policy.DURABILITY, default="memory")
    assert found == (table.get(nearest, "memory"), nearest)


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (set_of("/a", "fast"), BadRequest, "memory, async, barrier, sync"),
        (set_of("/a", "x" * 500), BadRequest, "memory, async, barrier, sync"),
        (set_of("/a", key="colour"), BadRequest, "there is durability"),
        (set_of("a"), BadRequest, "absolute"),
        (set_of("/a/../b"), BadRequest, ".."),
        (set_of("/a/.snapshot/s"), ReadOnly, "read"),
        (set_of("/a", "sync"), BadRequest, "--tier"),
        (c.RemovePolicy("/a", "colour"), BadRequest, "there is durability"),
        (c.RemovePolicy("x", ""), BadRequest, "absolute"),
    ],
)
def test_what_is_refused_says_what_would_be_good(
    command: c.Command, error: type[DisklessError], text: str
) -> None:
    world = World()
    assert world.refusal(command) is error
    with pytest.raises(error, match=text):
        world.do(command)


def test_a_policy_is_changed_and_removed_on_a_live_tree() -> None:
    world = tiered()
    assert world.do(set_of("/a", "sync")).changed
    assert not world.do(set_of("/a", "sync")).changed
    assert world.do(set_of("/a", "memory")).changed
    assert world.state.policies.durability("/a/b", default="async") == "memory"
    assert world.do(c.RemovePolicy("/a", "")) == c.Done(1)
    assert world.do(c.RemovePolicy("/a", "durability")) == c.Done(0, changed=False)
    assert world.state.policies.durability("/a/b", default="async") == "async"
    check_counts(world.state)


def test_a_policy_belongs_to_the_path_and_not_to_what_is_there() -> None:
    world = tiered()
    world.put("/a/x")
    world.do(set_of("/a", "memory"))
    world.rename("/a", "/b")
    assert world.state.policies.table == {"/a": {"durability": "memory"}}
    world.delete("/b", recursive=True)
    assert world.state.policies.durability("/a/y", default="async") == "memory"


def test_it_is_shown_with_where_it_comes_from() -> None:
    world = World()
    shown = answers.answer(world.state, q.Policy("/a/b"))
    assert ("durability", "memory", "") in shown.entries
    world.do(c.AttachTier("file:///t", 1, 0))
    assert ("durability", "async", "") in answers.answer(world.state, q.Policy("/a/b")).entries
    world.do(set_of("/a", "sync"))
    assert ("durability", "sync", "/a") in answers.answer(world.state, q.Policy("/a/b")).entries
    with pytest.raises(BadRequest):
        answers.answer(world.state, q.Policy("a"))


def test_a_tier_that_a_path_relies_on_is_not_detached() -> None:
    world = tiered()
    world.do(set_of("/a", "sync"))
    with pytest.raises(BadRequest, match=r"/a asks for durability=sync"):
        world.do(c.DetachTier())
    world.do(set_of("/a", "async"))
    assert world.do(c.DetachTier()) == c.Done()


def test_there_are_only_so_many_and_only_as_long_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policies, "POLICIES_MAX", 2)
    world = World()
    for path in ("/a", "/b"):
        world.do(set_of(path))
    assert world.refusal(set_of("/c")) is CapacityExceeded
    assert world.do(set_of("/a", "memory")).changed, "no row more"
    world.do(c.RemovePolicy("/a", ""))
    world.do(c.Limit(world.state.bytes_used + 10))
    assert world.refusal(set_of("/a")) is CapacityExceeded
