"""Certificates of a cluster that serves: shown, renewed by hand and by themselves."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from diskless.agent import renewal
from diskless.cli import exits, run
from diskless.client import descriptor
from diskless.config import ClusterSettings
from diskless.identity.certificates import AGENT_DAYS, fingerprint
from diskless.launch.local import LocalCluster
from diskless.node import Node, read_wall_ms
from tests.conftest import StartCluster
from tests.support import eventually

SMALL = {"agents": 3, "data_shards": 1, "parity_shards": 1}
DAY_MS = 24 * 3600 * 1000

Tls = Callable[..., Any]


@pytest.fixture
def tls(capfd: pytest.CaptureFixture[str]) -> Tls:
    """Runs `diskless tls`, and gives what it printed."""

    def call(cluster: LocalCluster, *arguments: str, status: int = exits.OK) -> Any:
        capfd.readouterr()
        assert run(["--cluster", cluster.settings.name, "tls", *arguments, "--json"]) == status
        out, err = capfd.readouterr()
        return json.loads(out or err)

    return call


def shown(node: Node) -> str:
    assert node.settings.tls is not None
    return fingerprint(node.settings.tls.pair.chain)


def test_show_says_what_agents_show(start: StartCluster, tls: Tls) -> None:
    cluster = start(**SMALL, tls=True)
    said = tls(cluster, "show")
    pem = descriptor.load(cluster.settings.name).authority.encode()
    assert (said["tls"], said["authority"]) == (True, fingerprint(pem))
    found = {slot: agent["fingerprint"] for slot, agent in said["agents"].items()}
    assert found == {f"agent-{slot}": shown(node) for slot, node in cluster.nodes.items()}


def test_renew_gives_every_agent_another(start: StartCluster, tls: Tls) -> None:
    cluster = start(**SMALL, tls=True)
    before = {slot: shown(node) for slot, node in cluster.nodes.items()}
    said = tls(cluster, "renew")
    assert said["renewed"] == 3
    for slot, node in cluster.nodes.items():
        assert shown(node) == said["agents"][f"agent-{slot}"]["fingerprint"] != before[slot]
    with cluster.connect() as client:
        client.write("/a", b"1")
        assert client.read("/a") == b"1"


def test_with_a_clients_token_nothing_is_renewed_and_the_descriptor_stays(
    start: StartCluster, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the operator's key is there, too."""
    cluster = start(**SMALL, tls=True)
    before = {slot: shown(node) for slot, node in cluster.nodes.items()}
    known = descriptor.load(cluster.settings.name)
    monkeypatch.setenv(descriptor.TOKEN_VARIABLE, cluster.token("/q"))
    said = tls(cluster, "renew", status=exits.FORBIDDEN)
    assert "admin" in str(said)
    assert {slot: shown(node) for slot, node in cluster.nodes.items()} == before
    assert descriptor.load(cluster.settings.name) == known


def test_agents_that_are_down_are_named(start: StartCluster, tls: Tls) -> None:
    cluster = start(**SMALL, tls=True)
    cluster.kill(2)
    said = tls(cluster, "renew")
    assert (said["renewed"], list(said["silent"])) == (2, ["agent-2"])


def test_a_cluster_without_tls_says_so(start: StartCluster, tls: Tls) -> None:
    cluster = start(**SMALL)
    assert tls(cluster, "show")["tls"] is False
    said = tls(cluster, "renew", status=exits.USAGE)
    assert "diskless up --tls" in said["message"]


@pytest.mark.parametrize(("days", "renewed"), [(AGENT_DAYS / 2, False), (AGENT_DAYS * 0.7, True)])
def test_agents_renew_by_themselves_before_it_is_too_late(
    monkeypatch: pytest.MonkeyPatch, days: float, renewed: bool
) -> None:
    monkeypatch.setattr(renewal, "LOOK_INTERVAL_S", 0.05)
    looks = 0

    def later_ms() -> int:
        nonlocal looks
        looks += 1
        return read_wall_ms() + int(days * DAY_MS)

    settings = ClusterSettings(name="renewal", **SMALL, tls=True)
    with LocalCluster(settings, wall_clocks={2: later_ms}) as cluster:
        before = [shown(cluster.nodes[slot]) for slot in (1, 2)]
        if renewed:
            eventually(lambda: shown(cluster.nodes[2]) != before[1])
        else:
            begun = looks
            eventually(lambda: looks > begun + 2)
            assert shown(cluster.nodes[2]) == before[1]
        assert shown(cluster.nodes[1]) == before[0], "its clock says that there is time"
