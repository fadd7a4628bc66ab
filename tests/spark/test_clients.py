"""The JVM's client by the specification of clients: diskless/protocol/clients.json."""

import json
from contextlib import closing
from typing import Any

import pytest

from diskless.checksum import file_checksum
from tests.clients.scripted import TOKEN, Scenario, Stage, content
from tests.clients.specification import SPECIFICATION, TIMEOUT_S, Actor, play, scenarios


class Jvm(Actor):
    def __init__(self, jvm: Any, stage: Stage, timeout_s: float) -> None:
        self._client = jvm.io.diskless.spark.ScriptedClient(
            ",".join(stage.gateways), TOKEN, int(timeout_s * 1000)
        )

    def do(self, op: str, size: int) -> tuple[str, str]:
        outcome, _, words = self._client.act(op, size).partition("\n")
        done, _, checksum = outcome.partition(" ")
        if checksum:
            assert checksum == f"{file_checksum(content(size)):016x}"
        return done, words


def told(cases: list[Scenario]) -> list[Any]:
    return [pytest.param(one, id=one["name"]) for one in cases]


@pytest.mark.parametrize("scenario", told(scenarios("jvm")))
def test_conversation(jvm: Any, scenario: Scenario) -> None:
    with closing(Stage(scenario)) as stage:
        play(scenario, stage, Jvm(jvm, stage, scenario.get("timeout_s", TIMEOUT_S)))


@pytest.mark.parametrize("scenario", told(SPECIFICATION["routes"]))
def test_routes(jvm: Any, scenario: Scenario) -> None:
    assert jvm.io.diskless.spark.ScriptedClient.routes(json.dumps(scenario["steps"])) == ""


def test_numbers(jvm: Any) -> None:
    assert json.loads(jvm.io.diskless.spark.ScriptedClient.numbers()) == SPECIFICATION["numbers"]
