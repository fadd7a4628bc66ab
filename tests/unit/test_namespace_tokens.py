"""Tokens in the namespace: registering and revoking, what is kept and for how long, numbers."""

from collections.abc import Iterator

import pytest

from diskless.errors import AlreadyExists, CapacityExceeded
from diskless.namespace import answers
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace import snapshot as s
from diskless.namespace.state import NamespaceState
from diskless.namespace.tokens import FORGET_AT_ONCE_MAX, FORGET_SLACK_S
from tests.sim.dump import dump
from tests.unit.test_namespace_world import World

ISSUE = c.IssueToken("q1", ("/a", "/b"), True, 100, "admin")


def copy_of(state: NamespaceState) -> NamespaceState:
    copy = NamespaceState()
    restorer = s.Restorer(copy)
    for chunk in s.snapshot(state):
        restorer.take(chunk)
    return copy


def revoked(state: NamespaceState, after: int = 0, limit: int = 10**6) -> list[str]:
    return [name for name, _ in state.tokens.revoked_after(after, limit=limit)[0]]


def test_the_same_token_may_be_registered_again_and_no_other_of_its_name() -> None:
    world = World()
    assert world.do(ISSUE).changed
    assert not world.do(ISSUE).changed
    assert not world.do(c.IssueToken("q1", ("/a", "/b"), True, 100, "somebody else")).changed
    for other in (
        c.IssueToken("q1", ("/a",), True, 100),
        c.IssueToken("q1", ("/a", "/b"), False, 100),
        c.IssueToken("q1", ("/a", "/b"), True, 101),
    ):
        assert world.refusal(other) is AlreadyExists
    assert world.do(c.IssueToken("q2", ("/a",), True, 100)).changed


def test_a_revoked_name_stays_revoked_and_cannot_be_registered() -> None:
    world = World()
    world.do(ISSUE)
    assert world.do(c.RevokeToken("q1")) == c.Done(1, changed=True)
    assert world.do(c.RevokeToken("q1")) == c.Done(1, changed=False)
    assert world.refusal(ISSUE) is AlreadyExists
    assert revoked(world.state) == ["q1"]


def test_a_name_that_was_never_registered_can_be_revoked() -> None:
    world = World()
    assert world.do(c.RevokeToken("nobody")) == c.Done(0, changed=True)
    assert world.do(c.RevokeToken("nobody")) == c.Done(0, changed=False)
    assert world.refusal(c.IssueToken("nobody", ("/a",), True, 0)) is AlreadyExists


@pytest.mark.parametrize("registered", [True, False])
def test_in_a_full_namespace_none_is_registered_but_any_is_revoked(registered: bool) -> None:
    world = World()
    if registered:
        world.do(ISSUE)
    world.do(c.Limit(world.state.bytes_used))
    assert world.refusal(c.IssueToken("q2", ("/a",), True, 100)) is CapacityExceeded
    for number in range(300):
        world.do(c.RevokeToken(f"q{number}"))
    assert len(revoked(world.state)) == 300
    world.do(c.Limit(2 * world.state.bytes_used))
    assert world.do(c.IssueToken("later", ("/a",), True, 100)).changed


def test_a_token_is_forgotten_long_after_it_has_expired_and_a_few_at_a_time() -> None:
    world = World()
    for number in range(20):
        world.do(c.IssueToken(f"q{number}", ("/a",), True, 100 + number))
        world.do(c.RevokeToken(f"q{number}"))
    world.do(c.IssueToken("forever", ("/a",), True, 0))
    world.do(c.RevokeToken("never registered"))
    weight = world.state.tokens.bytes_used
    world.now_ms = 1000 * (100 + FORGET_SLACK_S) - 1
    world.do(c.RevokeToken("never registered"))
    assert len(world.state.tokens) == 22
    world.now_ms += 100_000
    for left in (22 - FORGET_AT_ONCE_MAX, 22 - 2 * FORGET_AT_ONCE_MAX, 2, 2):
        world.do(c.RevokeToken("never registered"))
        assert len(world.state.tokens) == left
    assert world.state.tokens.bytes_used < weight / 4
    assert revoked(world.state) == ["never registered"]
    assert world.state.tokens.version == 21
    assert world.do(c.IssueToken("q1", ("/b",), True, 10**6)).changed, "the name is free again"


def parts(state: NamespaceState, limit: int) -> Iterator[tuple[list[str], int]]:
    """The list as an agent hears it."""
    number = 0
    while number < state.tokens.version:
        names, number = state.tokens.revoked_after(number, limit=limit)
        yield [name for name, _ in names], number


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_revoked_names_come_in_parts_that_make_the_whole_in_order(limit: int) -> None:
    world = World()
    for number in range(10):
        world.do(c.IssueToken(f"q{number}", ("/a",), True, 5 if number in (0, 3, 9) else 0))
        world.do(c.RevokeToken(f"q{number}"))
    world.now_ms = 1000 * (6 + FORGET_SLACK_S)
    assert not world.do(c.RevokeToken("q1")).changed  # forgets those that have expired
    found = list(parts(world.state, limit))
    expected = [f"q{number}" for number in (1, 2, 4, 5, 6, 7, 8)]
    assert [name for names, _ in found for name in names] == expected
    assert found[-1][1] == 10
    assert all(len(names) <= limit for names, _ in found)
    assert revoked(world.state, after=10) == []
    assert world.state.tokens.revoked_after(99, limit=limit) == ([], 10)


def test_a_copy_of_the_state_has_the_tokens_and_forgets_them_alike() -> None:
    world = World()
    for number in range(40):
        name = f"q{number * 7 % 40}"
        world.do(c.IssueToken(name, (f"/{number}",), number % 2 == 0, 100 + number * 13 % 40))
    for number in range(0, 40, 3):
        world.do(c.RevokeToken(f"q{number}"))
    session = world.do(c.OpenSession("q5")).number
    copy = copy_of(world.state)
    assert dump(copy) == dump(world.state)
    assert copy.bytes_used == world.state.bytes_used
    assert copy.sessions.who(session) == "q5"
    assert copy.tokens.revoked_after(3, limit=5) == world.state.tokens.revoked_after(3, limit=5)
    world.now_ms = 1000 * (120 + FORGET_SLACK_S)
    for number in range(8):
        command = c.RevokeToken(f"q{number}")
        results = world.apply(command)
        assert copy.apply(command, now_ms=world.now_ms, elapsed_ms=world.elapsed_ms) == results
        assert dump(copy) == dump(world.state)


def test_tokens_are_listed_by_name_in_pages() -> None:
    world = World()
    for number in range(25):
        world.do(c.IssueToken(f"q{number:02}", ("/a",), True, 0))
    found: list[str] = []
    more = True
    while more:
        page = answers.answer(world.state, q.Tokens(found[-1] if found else "", 10))
        found += [token.name for token in page.entries]
        more = page.more
    assert found == [f"q{number:02}" for number in range(25)]
    long = tuple(f"/{'x' * 4000}{n}" for n in range(32))
    for number in range(25):
        world.do(c.IssueToken(f"long{number:02}", long, True, 0))
    page = answers.answer(world.state, q.Tokens("", 1000))
    assert 0 < len(page.entries) < 25
    assert page.more
