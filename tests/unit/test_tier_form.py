"""The form in which changes and pictures lie in tiers, for years: it is here in full, and what
is here must be understood by every later version."""

from typing import Any

import msgspec
import pytest

from diskless.namespace import commands as c
from diskless.namespace import journal as j
from diskless.namespace import picture
from diskless.namespace.state import NamespaceState
from tests.unit.test_namespace_tier import facts
from tests.unit.test_namespace_world import World, inline_file

decode = msgspec.msgpack.decode
encode = msgspec.msgpack.encode

CHANGES: dict[str, tuple[j.What, list[Any]]] = {
    "put": (
        j.Written(5, True, (("/a", 3, 77), ("/b", 0, 0))),
        ["Written", 5, True, [["/a", 3, 77], ["/b", 0, 0]]],
    ),
    "mkdirs": (c.Mkdirs(0, 0, "/a"), ["Mkdirs", 0, 0, "/a", True]),
    "rename": (c.Rename(0, 0, "/a", "/b", True), ["Rename", 0, 0, "/a", "/b", True]),
    "delete": (c.Delete(0, 0, "/a", True, True), ["Delete", 0, 0, "/a", True, True]),
    "snapshot": (
        c.CreateSnapshot(0, 0, ("/a", "/b"), "s", True),
        ["CreateSnapshot", 0, 0, ["/a", "/b"], "s", True],
    ),
    "rename of a snapshot": (
        c.RenameSnapshot(0, 0, "/a", "s", "t"),
        ["RenameSnapshot", 0, 0, "/a", "s", "t"],
    ),
    "delete of snapshots": (
        c.DeleteSnapshots(0, 0, "/a", ("s", "t")),
        ["DeleteSnapshots", 0, 0, "/a", ["s", "t"]],
    ),
    "clone": (c.Clone(0, 0, "/a", "/b"), ["Clone", 0, 0, "/a", "/b"]),
    "rollback": (c.Rollback(0, 0, "/a", "s", True), ["Rollback", 0, 0, "/a", "s", True, False]),
    "pruned files": (c.Prune(0, 0, "/a", ("b/c",)), ["Prune", 0, 0, "/a", ["b/c"]]),
    "replaced directories": (
        c.Replace(0, 0, (c.Swap("/a", "/b", "s"),), False),
        ["Replace", 0, 0, [["/a", "/b", "s"]], False, False],
    ),
    "token": (
        c.IssueToken("q", ("/a",), True, 9),
        ["IssueToken", "q", ["/a"], True, 9, ""],
    ),
    "revocation": (c.RevokeToken("q"), ["RevokeToken", "q", ""]),
    "forgotten tokens": (j.TokensForgotten(), ["TokensForgotten"]),
    "policy": (
        c.SetPolicy("/a", "durability", "sync"),
        ["SetPolicy", "/a", "durability", "sync", ""],
    ),
    "no policy": (c.RemovePolicy("/a", ""), ["RemovePolicy", "/a", "", ""]),
}


def test_every_change_is_here() -> None:
    assert {type(what) for what, _ in CHANGES.values()} == set(j.What.__args__)


@pytest.mark.parametrize(("what", "form"), CHANGES.values(), ids=CHANGES)
def test_a_change_lies_in_the_tier_in_this_form(what: j.What, form: list[Any]) -> None:
    entry = j.Entry(4, 3, 1000, what)
    assert decode(j.encode(entry)) == [4, 3, 1000, form]
    assert j.decode(encode([4, 3, 1000, form])) == entry


PICTURE: list[list[Any]] = [
    ["counters", [9, -1, 1000, 3, 1, 1]],
    ["files", [[2, 3, 1000, 8], [3, 0, 1000, 0]]],
    [
        "nodes",
        [
            [0, ["b"], [2], []],
            [2, [], [1], [1000, 1, 1, 1, 3]],
            [0, ["d", "e"], [-2, 3], []],
            [2, [], [3], [1000, 2, 2, 2, 3]],
        ],
    ],
    ["files", [[1, 1, 1000, 7]]],
    ["nodes", [[0, ["a", "b"], [1, 2], []], [2, [], [5], [1000, 2, 2, 1, 4]]]],
    ["root", [4]],
    ["snapshots", [[1, "/d", "s", 6, 1000, 0, "", 0]]],
    ["policies", [["/d", "durability", "sync"]]],
    ["tokens", [["q", ["/d"], True, 9, 1000, 1000, 1]]],
]


def example() -> World:
    world = World()
    world.do(c.AttachTier("file:///t", 1, 0))
    world.do(world.commit_of(inline_file("/d/a", b"1", checksum=7)))
    world.do(world.commit_of(inline_file("/d/b", b"123", checksum=8)))
    world.snapshot("/d", "s")
    world.delete("/d/a")
    world.do(world.commit_of(inline_file("/e", b"")))
    world.do(c.SetPolicy("/d", "durability", "sync"))
    world.do(c.IssueToken("q", ("/d",), True, 9))
    world.do(c.RevokeToken("q"))
    return world


def test_a_picture_lies_in_the_tier_in_this_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "CHUNK_ROWS_MAX", 4)
    world = example()
    world.do(c.Mark())
    assert [decode(chunk) for chunk in picture.rows(world.state)] == PICTURE
    state = NamespaceState()
    picture.restore_picture(state, map(encode, PICTURE))
    assert facts(state) == facts(world.state)


def test_a_picture_of_a_later_version_is_not_half_understood() -> None:
    with pytest.raises(ValueError, match="a later version"):
        picture.restore_picture(NamespaceState(), [encode(["colours", []])])
