"""The specification of clients (diskless/protocol/clients.json), and how a client is put to it."""

import json
import time
from pathlib import Path
from typing import Any

from tests.clients.scripted import MIB, Scenario, Stage

SPECIFICATION: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "diskless/protocol/clients.json").read_text()
)
TIMEOUT_S = 60.0
"""Of a client, where a scenario does not say: nothing comes near it."""


def scenarios(client: str) -> list[Scenario]:
    """All conversations for one client: those that are written down, and those that follow from
    the tables of refusals."""
    found = SPECIFICATION["conversations"] + _of_refusals() + _of_final()
    return [one for one in found if client in one.get("clients", [client])]


def _of_refusals() -> list[Scenario]:
    made: list[Scenario] = []
    for reason, rule in SPECIFICATION["refusals"].items():
        if reason == "about":
            continue
        answer = f"refuse {reason}" + (" and close" if rule.get("closes") else "")
        small, bulk = ("A", "B") if rule["next"] == "another" else ("leader", "A")
        made += [
            {
                "name": f"after {reason} {rule['next']} agent is asked",
                "script": [{"of": "stat", "times": 1, "answer": answer}],
                "do": [{"op": "stat", "gives": "done"}],
                "asked": ["stat leader", f"stat {small}"],
            },
            {
                "name": f"after {reason} a mutation is repeated with the same numbers",
                "script": [{"of": "put", "times": 1, "answer": answer}],
                "do": [{"op": "put", "bytes": 1, "gives": "done"}],
                "asked": ["session leader", "put leader 1.1", f"put {small} 1.1"],
            },
            {
                "name": f"after {reason} to a commit the upload goes on with {rule['next']}",
                "script": [{"of": "commit", "times": 1, "answer": answer}],
                "do": [{"op": "upload", "bytes": MIB + 1, "gives": "done"}],
                "asked_of": {"commit": ["A 1.1 @1", f"{bulk} 1.1 @1 resume 1"]},
            },
        ]
        if rule.get("told"):
            refusals = [{"of": "stat", "times": 2, "answer": answer}]
            end = {"gives": rule.get("ends", "DeadlineExceeded"), "says": reason}
            made.append(
                {
                    "name": f"{reason} is told at the deadline, whatever came after it",
                    "timeout_s": 0.6,
                    "script": [*refusals, {"of": "stat", "answer": "refuse StaleShards"}],
                    "do": [{"op": "stat", **end}],
                }
            )
    return made


def _of_final() -> list[Scenario]:
    return [
        {
            "name": f"{reason} is final",
            "script": [{"of": "put", "answer": f"refuse {reason}"}],
            "do": [{"op": "put", "bytes": 1, "gives": reason}],
            "asked": ["session leader", "put leader 1.1"],
        }
        for reason in SPECIFICATION["final"]
    ]


class Actor:
    """A client that is put to the test. Outcomes are `done` or the reason of the error, and then
    what it says."""

    def do(self, op: str, size: int) -> tuple[str, str]:
        raise NotImplementedError


def play(scenario: Scenario, stage: Stage, actor: Actor) -> None:
    """Runs a scenario, and compares all that it speaks of."""
    outcome, words = actor.do("stat", 0)
    assert outcome == "done", words
    stage.begin()
    for step in scenario["do"]:
        if step["op"] == "wait":
            time.sleep(step["s"])
            continue
        stage.size = step.get("bytes", 0)
        outcome, words = actor.do(step["op"], stage.size)
        assert outcome == step["gives"], (words, stage.trace)
        assert step.get("says", "") in words
    found = [f"{kind} {what}" for kind, what in stage.trace]
    assert found == scenario.get("asked", found), found
    for kind, wanted in scenario.get("asked_of", {}).items():
        assert [what for one, what in stage.trace if one == kind] == wanted, found
    for kind, wanted in scenario.get("counts", {}).items():
        assert sum(one == kind for one, _ in stage.trace) == wanted, found
    for kind, wanted in scenario.get("under_way", {}).items():
        assert stage.under_way[kind] == wanted
    for kind, wanted in scenario.get("patient", {}).items():
        assert stage.patient[kind] == wanted, kind
    assert found[-1:] == [scenario.get("last", *found[-1:])]
