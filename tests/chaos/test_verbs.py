"""The verbs of `diskless chaos` that need no Ray, against a live cluster in this process."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import diskless
from diskless.chaos.planter import FaultPlanter
from diskless.cli import exits, run
from diskless.client import descriptor
from diskless.config import MIB
from diskless.errors import Forbidden
from diskless.launch.local import LocalCluster
from diskless.protocol.operating import Faults
from tests.support import CALM, content, eventually

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """What is damaged stays so until `heal`: nothing is repaired by itself."""
    shape = {"agents": 4, "data_shards": 2, "parity_shards": 1}
    with diskless.local_cluster(**shape, chaos=True, tuning=CALM) as cluster:
        yield cluster


@pytest.fixture
def chaos(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cli]:
    """Runs `diskless chaos`, and heals when the test ends."""
    monkeypatch.setenv("DISKLESS_CLUSTER", cluster.settings.name)

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run(["chaos", *map(str, arguments)])
        out, err = capfd.readouterr()
        return status, out, err

    yield call
    assert call("heal")[0] == exits.OK
    with cluster.connect() as client:
        eventually(lambda: client.status().margin == 1)


def ok(chaos: Cli, *arguments: object) -> Any:
    status, out, err = chaos(*arguments, "--json")
    assert status == exits.OK, err
    return json.loads(out)


def test_list_says_what_is_planted_and_who_is_down(chaos: Cli):
    assert ok(chaos, "list") == {"faults": [], "down": {}, "spent": 0, "k": 1}
    ok(chaos, "slow", "2", "--delay", "30")
    listed = ok(chaos, "list")
    assert listed["faults"] == [
        {"kind": "slow", "slots": ["agent-2"], "delay_ms": 30, "share": 0.0}
    ]
    assert listed["down"] == {"agent-2": "slow"}
    assert "slow: agent-2, 30 ms" in chaos("list")[1]


def test_a_fault_beyond_k_is_refused_with_why_and_how(chaos: Cli):
    ok(chaos, "partition", "agent-3")
    status, out, err = chaos("slow", "1")
    assert (status, out) == (exits.OVER_BUDGET, "")
    assert err.count("\n") == 1
    assert "agent-3 cut off" in err
    assert "--max-down 2" in err
    assert chaos("slow", "1", "--max-down", "2")[0] == exits.OK


def test_a_cut_and_its_heal(chaos: Cli, cluster: LocalCluster):
    assert ok(chaos, "partition", "3") == {"cut": ["agent-3"], "untold": []}
    assert cluster.nodes[0].faults.cut == {3}
    assert cluster.nodes[3].faults.cut == {0, 1, 2}
    healed = ok(chaos, "heal")
    assert healed == {"resumed": [], "mended": 0, "untold": []}
    assert not any(node.faults.disturbs for node in cluster.nodes.values())


def test_corrupt_and_fill_tell_what_they_did(chaos: Cli, cluster: LocalCluster):
    with cluster.connect() as client:
        client.write("/a", content(2 * MIB), overwrite=True)
        flipped = ok(chaos, "corrupt", "1", "--shards", "1", "--seed", "5")["flipped"]
        assert flipped == {"agent-1": 1}
        assert client.read("/a") == content(2 * MIB)
        assert ok(chaos, "heal")["mended"] == 1
        assert ok(chaos, "fill", "1", "--percent", "50")["filled"] == ["agent-1"]
        assert cluster.nodes[1].faults.ballast_bytes == cluster.settings.memory_bytes // 2


def test_a_cluster_on_one_host_is_not_killed_with_it(chaos: Cli):
    status, _, err = chaos("kill-host", "localhost")
    assert status == exits.USAGE
    assert "all agents are on one host" in err
    status, _, err = chaos("kill-host", "elsewhere")
    assert "no agent is on host 'elsewhere'" in err


@pytest.mark.parametrize("verb", ["kill", "pause"])
def test_processes_of_a_cluster_without_ray_are_not_touched(chaos: Cli, verb: str):
    status, _, err = chaos(verb, "1")
    assert status == exits.USAGE
    assert "lives and ends in the process that made it" in err


def test_an_unknown_slot_is_named(chaos: Cli):
    status, _, err = chaos("slow", "9")
    assert status == exits.USAGE
    assert "there is no agent-9" in err


def test_nobody_was_frozen(chaos: Cli):
    assert ok(chaos, "resume", "1") == {"resumed": []}


def test_a_run_without_a_cluster_says_how_to_have_one(capfd: pytest.CaptureFixture[str]):
    assert run(["chaos", "run", "--cluster", "nowhere"]) == exits.NO_CLUSTER
    err = capfd.readouterr().err
    assert "diskless up --chaos --name nowhere" in err
    assert "--local" in err


# A cluster that was not started for it.


@pytest.fixture
def unarmed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LocalCluster, Cli]]:
    with diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster:
        monkeypatch.setenv("DISKLESS_CLUSTER", cluster.settings.name)

        def call(*arguments: object) -> tuple[int, str, str]:
            capfd.readouterr()
            status = run(["chaos", *map(str, arguments)])
            out, err = capfd.readouterr()
            return status, out, err

        yield cluster, call


@pytest.mark.parametrize(
    "fault",
    [("partition", 1), ("slow", 1), ("corrupt", 1), ("fill", 1), ("run", "--faults", "kill,slow")],
    ids=lambda fault: fault[0],
)
def test_faults_need_a_cluster_that_was_started_for_them(
    unarmed: tuple[LocalCluster, Cli], fault: tuple[object, ...]
):
    cluster, chaos = unarmed
    status, out, err = chaos(*fault)
    assert (status, out) == (exits.FORBIDDEN, "")
    assert "diskless up --chaos" in err
    assert err.count("\n") == 1
    assert not any(node.faults.disturbs for node in cluster.nodes.values())
    assert ok(chaos, "list")["faults"] == [], "nothing is left on record"
    assert chaos("heal")[0] == exits.OK


@pytest.mark.parametrize(
    "wish",
    [
        Faults(cut=[1]),
        Faults(delays_ms={1: 5}),
        Faults(ballast_bytes=5),
        Faults(corrupt=1),
        Faults(heal=True, cut=[1]),
    ],
    ids=str,
)
def test_agents_themselves_refuse_faults_unless_they_are_armed(
    unarmed: tuple[LocalCluster, Cli], wish: Faults
):
    """Whoever has the key and another program than ours gets no further."""
    cluster, _ = unarmed
    with cluster.connect() as client:
        planter = FaultPlanter(descriptor.load(cluster.settings.name), client)
        peer = planter.peers()[0]
        with pytest.raises(Forbidden, match="diskless up --chaos"):
            planter.plant(peer, wish)
        planted = planter.plant(peer, Faults())
    assert (planted.cut, planted.delays_ms, planted.ballast_bytes) == ([], {}, 0)
