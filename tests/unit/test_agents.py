"""Which agents can be started, and which are worth waiting for, as Ray lists them."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from diskless.config import ClusterSettings
from diskless.identity.keyfile import Keys
from diskless.launch import actors, agents, spread
from diskless.launch.model import Identity
from diskless.launch.seats import RayNode
from diskless.launch.spread import RayletReply

KEYS = Keys(cluster="c", name="default", root="s")
IDENTITY = Identity(ClusterSettings(), KEYS, one_host=False)
REPLIES = {"open": RayletReply.SERVES, "closed": RayletReply.ENDED, "silent": RayletReply.SILENT}
NIL = ray.NodeID.nil().hex()
"""What Ray calls the node of an actor that has none yet."""


class Listed:
    """Actors by slot, each with the node that Ray has it on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, homes: dict[int, str]) -> None:
        self.rows: dict[int, dict[str, Any]] = {
            slot: {"ActorID": f"actor {slot}", "Address": {"NodeID": home}}
            for slot, home in homes.items()
        }
        self.answering: set[int] = set()
        nodes = [RayNode(id_, "h", "127.0.0.1") for id_ in REPLIES]
        monkeypatch.setattr(spread, "registered_nodes", lambda: nodes)
        monkeypatch.setattr(spread, "knock", lambda _: REPLIES)
        monkeypatch.setattr(actors, "row_of", lambda _, slot: self.rows.get(slot, {}))
        monkeypatch.setattr(actors, "find", lambda _, slot: self.rows.get(slot))
        monkeypatch.setattr(actors, "give_up", self._give_up)
        monkeypatch.setattr(actors, "ask_quietly", self._ask)

    def _give_up(self, _: str, slot: int, actor: str) -> None:
        assert self.rows.pop(slot)["ActorID"] == actor

    def _ask(self, _: Identity, slots: list[int]) -> dict[int, Any]:
        return {slot: SimpleNamespace() for slot in slots if slot in self.answering}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Listed:
    return Listed(monkeypatch, {0: "open", 1: "closed", 2: "silent", 3: NIL, 4: "closed"})


def test_only_one_whose_raylet_has_ended_is_given_up(listed: Listed) -> None:
    """One on a silent host may be cut off, with its shards; one that answers lives, whatever
    its raylet's port says."""
    listed.answering = {4}
    assert agents.vacant(IDENTITY, range(6)) == [1, 5]
    assert sorted(listed.rows) == [0, 2, 3, 4]


def test_one_that_nobody_asked_about_is_left_alone(listed: Listed) -> None:
    assert agents.vacant(IDENTITY, [0, 5]) == [5]
    assert sorted(listed.rows) == [0, 1, 2, 3, 4]


def test_worth_waiting_for_are_those_on_nodes_that_answer_or_on_none_yet(listed: Listed) -> None:
    assert agents.reachable(IDENTITY, range(6)) == [0, 3]
