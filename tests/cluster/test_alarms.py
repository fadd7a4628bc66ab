"""The alarms of cluster/alerts.yml: each is written down, fires when it should, and ends again.

`promtool` plays series to the rules as they are. Then a real Prometheus watches a real cluster in
which faults are planted; there the rules have no delay, so that nobody waits for minutes.
"""

import itertools
import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import diskless
from diskless.agent.leading import Leader
from diskless.client import Client
from diskless.config import MIB
from diskless.dashboard.metrics import AGENT, CLUSTER
from diskless.errors import CapacityExceeded, DisklessError
from diskless.launch.local import LocalCluster
from diskless.model import DrillStatus
from diskless.node import Node
from tests.cluster.prometheus import (
    RULES,
    Prometheus,
    alerts,
    needs_prometheus,
    needs_promtool,
    prometheus,
    promtool,
)
from tests.cluster.test_ends import announce, fill
from tests.cluster.test_eviction import evict
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, content, eventually, is_whole, kill, leader, on_loop

ROOT = Path(diskless.__file__).parents[1]


# As they are written.


def sections() -> dict[str, str]:
    """Of docs/alarms.md, by name, when each is told."""
    text = (ROOT / "docs/alarms.md").read_text()
    return dict(re.findall(r"^## (\w+)\n\n\*\*When:\*\* (.+)$", text, re.MULTILINE))


def test_every_alarm_has_a_section_that_says_what_to_do() -> None:
    links = re.findall(r"runbook_url: docs/alarms\.md#(\w+)$", RULES.read_text(), re.MULTILINE)
    assert links == [name.lower() for name in alerts()]
    assert list(sections()) == alerts()


def test_the_operators_page_has_the_same_alarms() -> None:
    table = (ROOT / "docs/operating.md").read_text().partition("| alarm, from `status --json` |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert [row.strip("| ").split(" | ")[0] for row in rows] == list(sections().values())


@needs_promtool
def test_the_rules_are_rules() -> None:
    assert f"SUCCESS: {len(alerts())} rules" in promtool("check", "rules", RULES)


NO_LABELS: Mapping[str, str] = {}


class Case(NamedTuple):
    """Series that make an alarm fire after `wait`, and others that do not."""

    fires: dict[str, str]
    quiet: dict[str, str]
    wait: str
    value: Mapping[str, str] = NO_LABELS


def at(name: str, labels: str = "", instance: str = "a") -> str:
    return f'{name}{{instance="{instance}"{labels and ", " + labels}}}'


def steady(value: object) -> str:
    return f"{value}x60"


CASES: dict[str, Case] = {
    # The leader changes on the way, and the alarm goes on.
    "DisklessMarginLow": Case(
        {
            at("diskless_margin"): "1x12 stale",
            at("diskless_parity_shards"): "2x12 stale",
            at("diskless_margin", instance="b"): "_x12 1x60",
            at("diskless_parity_shards", instance="b"): "_x12 2x60",
        },
        {at("diskless_margin"): "1x15 2x60", at("diskless_parity_shards"): steady(2)},
        "6m",
    ),
    "DisklessMarginGone": Case(
        {at("diskless_margin"): steady(0)}, {at("diskless_margin"): steady(1)}, "1m"
    ),
    "DisklessUnprotectable": Case(
        {at("diskless_repair_unprotectable_stripes"): steady(3)},
        {at("diskless_repair_unprotectable_stripes"): steady(0)},
        "2m",
    ),
    "DisklessAtStake": Case(
        {at("diskless_repair_at_stake_stripes"): steady(7)},
        {at("diskless_repair_at_stake_stripes"): steady(0)},
        "1m",
    ),
    "DisklessDataLost": Case(
        {at("diskless_stripes", 'health="lost"'): steady(1)},
        {
            at("diskless_stripes", 'health="lost"'): steady(0),
            at("diskless_stripes", 'health="degraded"'): steady(9),
        },
        "30s",
    ),
    "DisklessAgentDown": Case(
        {at("diskless_agent_up", 'agent="agent-3"'): steady(0)},
        {at("diskless_agent_up", 'agent="agent-3"'): "0x2 1x60"},
        "2m",
        {"agent": "agent-3"},
    ),
    "DisklessAgentSlow": Case(
        {at("diskless_agent_slow", 'agent="agent-3"'): steady(1)},
        {at("diskless_agent_slow", 'agent="agent-3"'): steady(0)},
        "6m",
        {"agent": "agent-3"},
    ),
    "DisklessAgentUnhosted": Case(
        {at("diskless_agent_unhosted", 'agent="agent-3"'): steady(1)},
        {at("diskless_agent_unhosted", 'agent="agent-3"'): steady(0)},
        "2m",
        {"agent": "agent-3"},
    ),
    "DisklessVoterBehind": Case(
        {at("diskless_voter_heard", 'agent="agent-3"'): steady(0)},
        {
            at("diskless_voter_heard", 'agent="agent-3"'): steady(1),
            at("diskless_voter_lag_entries", 'agent="agent-3"'): steady(20),
        },
        "3m",
        {"agent": "agent-3"},
    ),
    "DisklessLoopLag": Case(
        {at("diskless_loop_lag_seconds", 'statistic="p99"'): steady(0.2)},
        {
            at("diskless_loop_lag_seconds", 'statistic="p99"'): steady(0.05),
            at("diskless_loop_lag_seconds", 'statistic="max"'): steady(0.9),
        },
        "3m",
        {"instance": "a", "statistic": "p99"},
    ),
    "DisklessCorruptShards": Case(
        {at("diskless_corrupt_shards_total"): "0x4 1x60"},
        {at("diskless_corrupt_shards_total"): steady(7)},
        "3m",
        {"instance": "a"},
    ),
    "DisklessMemoryFull": Case(
        {
            at("diskless_memory_bytes", 'kind="shards"'): steady(80),
            at("diskless_memory_bytes", 'kind="log"'): steady(8),
            at("diskless_memory_max_bytes"): steady(100),
        },
        {
            at("diskless_memory_bytes", 'kind="shards"'): steady(80),
            at("diskless_memory_max_bytes"): steady(100),
        },
        "2m",
        {"instance": "a"},
    ),
    "DisklessNamespaceFull": Case(
        {at("diskless_namespace_bytes"): steady(95), at("diskless_namespace_max_bytes"): "100x60"},
        {at("diskless_namespace_bytes"): steady(80), at("diskless_namespace_max_bytes"): "100x60"},
        "2m",
    ),
    "DisklessTierLag": Case(
        {at("diskless_tier_lag_seconds"): steady(9), at("diskless_tier_lag_max_seconds"): "5x60"},
        {at("diskless_tier_lag_seconds"): steady(1), at("diskless_tier_lag_max_seconds"): "5x60"},
        "1m",
    ),
    "DisklessTierFailing": Case(
        {at("diskless_tier_state", 'state="failing"'): steady(1)},
        {
            at("diskless_tier_state", 'state="failing"'): steady(0),
            at("diskless_tier_state", 'state="draining"'): steady(1),
        },
        "1m",
    ),
    "DisklessEvictionStuck": Case(
        {at("diskless_eviction_state", 'state="stuck"'): steady(1)},
        {
            at("diskless_eviction_state", 'state="stuck"'): steady(0),
            at("diskless_eviction_state", 'state="evicting"'): steady(1),
        },
        "2m",
    ),
    # It is of all agents together: one alone may have few hits.
    "DisklessHitRateLow": Case(
        {
            at("diskless_cache_hits_total"): "0+30x60",
            at("diskless_cache_misses_total"): "0+20x60",
            at("diskless_cache_hits_total", instance="b"): "0+1x60",
            at("diskless_cache_misses_total", instance="b"): "0+20x60",
        },
        {
            at("diskless_cache_hits_total"): "0+30x60",
            at("diskless_cache_misses_total"): "0+2x60",
            at("diskless_cache_hits_total", instance="b"): "0+1x60",
            at("diskless_cache_misses_total", instance="b"): "0+20x60",
        },
        "15m",
    ),
    "DisklessTierSuperseded": Case(
        {at("diskless_tier_state", 'state="superseded"'): steady(1)},
        {at("diskless_tier_state", 'state="superseded"'): steady(0)},
        "30s",
    ),
    # Time begins at 0 here.
    "DisklessTierDrill": Case(
        {
            at("diskless_tier_drill_sound"): steady(1),
            at("diskless_tier_drill_timestamp_seconds"): steady(-8 * 86400),
        },
        {
            at("diskless_tier_drill_sound"): steady(1),
            at("diskless_tier_drill_timestamp_seconds"): steady(-6 * 86400),
        },
        "30s",
    ),
    "DisklessQuotaFull": Case(
        {
            at("diskless_quota_used_bytes", 'path="/a"'): steady(99),
            at("diskless_quota_max_bytes", 'path="/a"'): steady(100),
            at("diskless_quota_used_bytes", 'path="/b"'): steady(99),
            at("diskless_quota_max_bytes", 'path="/b"'): steady(1000),
        },
        {
            at("diskless_quota_used_bytes", 'path="/a"'): steady(90),
            at("diskless_quota_max_bytes", 'path="/a"'): steady(100),
        },
        "2m",
        {"path": "/a"},
    ),
    "DisklessRefused": Case(
        {at("diskless_refused_total", 'door="gateway", reason="wrong key"'): "_x3 1x60"},
        {at("diskless_refused_total", 'door="gateway", reason="wrong key"'): "5x60"},
        "4m",
        {"reason": "wrong key"},
    ),
    "DisklessAuditDropped": Case(
        {at("diskless_audit_dropped_total"): "0x4 2x60"},
        {at("diskless_audit_dropped_total"): steady(2)},
        "3m",
        {"instance": "a"},
    ),
    "DisklessNoLeader": Case(
        {at("diskless_leads"): steady(0)}, {at("diskless_margin"): steady(0)}, "1m"
    ),
}


def test_every_alarm_has_a_case() -> None:
    assert list(CASES) == alerts()


def scenario(alert: str, series: dict[str, str], wait: str, expected: list[Any]) -> dict[str, Any]:
    return {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": wait, "alertname": alert, "exp_alerts": expected}],
    }


def written_labels(alert: str) -> dict[str, str]:
    rule = RULES.read_text().partition(f"- alert: {alert}\n")[2]
    found = re.search(r"labels: {severity: (\w+)}", rule)
    assert found is not None
    return {"severity": found[1]}


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_an_alarm_fires_when_it_should_and_only_then(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    rules = tmp_path / "alerts.yml"
    # What people read is left out: it would have to be repeated here, word for word.
    kept = re.sub(r" +annotations:\n( {10}.*\n)+", "", RULES.read_text())
    rules.write_text(kept)
    labels = written_labels(alert) | dict(case.value)
    news = ("DisklessRefused", "DisklessAuditDropped")  # what was never told before counts too
    quiet_wait = "25m" if alert in news else "10m"
    page = {
        "rule_files": [str(rules)],
        "tests": [
            scenario(alert, case.fires, case.wait, [{"exp_labels": labels}]),
            scenario(alert, case.quiet, quiet_wait, []),
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(page))
    promtool("test", "rules", path)


def test_what_grafana_shows_and_alarms_ask_for_is_told() -> None:
    told = {spec.name for spec in (*AGENT, *CLUSTER)}
    told |= {f"{spec.name}_{part}" for spec in AGENT if spec.kind == "histogram"
             for part in ("bucket", "count", "sum")}  # fmt: skip
    shown = json.loads((ROOT / "cluster/grafana.json").read_text())
    asked = [target["expr"] for panel in shown["panels"] for target in panel["targets"]]
    asked += [one["expr"] for one in shown["annotations"]["list"]]
    asked += re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", RULES.read_text())
    named = {name for text in asked for name in re.findall(r"diskless_\w+", text)}
    assert len(named) > 30
    assert named <= told


def test_the_dashboard_for_grafana_is_made_from_its_program() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "cluster/make_grafana.py"], capture_output=True, check=True
    )
    assert done.stdout.decode() == (ROOT / "cluster/grafana.json").read_text()


# On a real cluster.


@pytest.fixture
def watched(
    start: StartCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[LocalCluster, Prometheus]]:
    """Five agents, 2+1, three of which vote; slots 3 and 4 only hold shards. With a parameter
    there is a file where their audit should be, and no tier."""
    broken = hasattr(request, "param")
    if broken:
        (tmp_path / "audit").write_bytes(b"no directory")
    cluster = start(
        agents=5,
        data_shards=2,
        parity_shards=1,
        memory="64MiB",
        tuning=STRIPED,
        metrics_port=19_470,
        tier="" if broken else f"file://{tmp_path}/tier",
        audit_dir=str(tmp_path / "audit"),
    )
    (tmp_path / "prometheus").mkdir()
    with prometheus(cluster, tmp_path / "prometheus") as server:
        eventually(lambda: server.up() == 5, 60)
        yield cluster, server


def plant(cluster: LocalCluster, slot: int, work: Callable[[Any], object]) -> None:
    """Does something to one agent, on its loop."""
    on_loop(cluster, lambda: work(cluster.nodes[slot]))


@needs_prometheus
@pytest.mark.timeout(400)
def test_faults_of_a_real_cluster_are_told_and_end_when_they_are_over(
    watched: tuple[LocalCluster, Prometheus], connect: Connect, tmp_path: Path
) -> None:
    cluster, server = watched
    client = connect(cluster)
    client.write("/a", content(8 * MIB))

    def calm() -> bool:
        """As on a machine that nobody else uses: the one of the test may be busy."""
        for slot in cluster.nodes:
            plant(cluster, slot, lambda node: [node.lag.note(0.0) for _ in range(1000)])
        return "DisklessLoopLag" not in server.firing()

    eventually(lambda: calm() and not server.firing(), 120, every_s=0.5)

    # An agent dies: it is down, and with k = 1 the margin is gone until repair is done.
    kill(cluster, 4)
    server.fires("DisklessAgentDown")
    cluster.revive(4)
    eventually(lambda: is_whole(client, 5))
    server.ends("DisklessAgentDown", "DisklessMarginLow", "DisklessMarginGone")

    # A voter dies: one more of those, and the namespace stops.
    follower = next(slot for slot in range(3) if slot != leader(cluster).slot)
    kill(cluster, follower)
    server.fires("DisklessMarginLow", "DisklessMarginGone", "DisklessVoterBehind")
    cluster.revive(follower)
    eventually(lambda: is_whole(client, 5))
    server.ends("DisklessMarginLow", "DisklessMarginGone", "DisklessVoterBehind")

    # Memory that counts as used.
    plant(cluster, 3, lambda node: setattr(node.faults, "ballast_bytes", 60 * MIB))
    server.fires("DisklessMemoryFull")
    plant(cluster, 3, lambda node: node.faults.heal())
    server.ends("DisklessMemoryFull")

    # Somebody without a token.
    node = cluster.nodes[0]
    assert node.doors.http is not None
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{node.doors.http.address}/metrics", timeout=10)
    server.fires("DisklessRefused")
    server.ends("DisklessRefused")

    # A loop that others keep busy.
    plant(cluster, 3, lambda node: [node.lag.note(0.5) for _ in range(100)])
    server.fires("DisklessLoopLag")
    eventually(calm, 120, every_s=0.5)

    # Whoever starts agents elsewhere has found no place for one.
    kill(cluster, 4)
    plant(cluster, leader(cluster).slot, homeless)
    server.fires("DisklessAgentUnhosted")
    cluster.revive(4)
    server.ends("DisklessAgentUnhosted")

    # No voter hears another.
    for slot in range(3):
        plant(cluster, slot, lambda node: node.faults.cut_off({0, 1, 2} - {node.slot}))
    server.fires("DisklessNoLeader")
    for slot in range(3):
        plant(cluster, slot, lambda node: node.faults.heal())
    server.ends("DisklessNoLeader")
    assert client.read("/a") == content(8 * MIB)


def homeless(node: Node) -> None:
    assert isinstance(node.replica.leading, Leader)
    node.replica.leading.tell({4: "no host has room"})


@needs_prometheus
@pytest.mark.usefixtures("slow_agents")
@pytest.mark.timeout(400)
def test_flipped_bits_slow_agents_and_a_store_that_fails_are_told(
    watched: tuple[LocalCluster, Prometheus], connect: Connect, tmp_path: Path
) -> None:
    cluster, server = watched
    client = connect(cluster)
    data = content(8 * MIB)
    client.write("/a", data)

    # Flipped bytes are read around, told and healed.
    plant(cluster, 3, lambda node: node.storage.shards.flip_bytes(4, random_seed=1))

    def read_corrupt() -> bool:
        assert client.read("/a") == data
        return "DisklessCorruptShards" in server.firing()

    eventually(read_corrupt, 60)
    server.ends("DisklessCorruptShards")

    # A store that takes nothing any more.
    tier = tmp_path / "tier"
    moved = tmp_path / "away"
    tier.rename(moved)
    tier.write_bytes(b"no directory")
    stop = threading.Event()

    def write() -> None:
        count = 0
        while not stop.wait(0.1):
            count += 1
            with suppress(DisklessError):
                client.write("/b", str(count).encode(), overwrite=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        server.fires("DisklessTierFailing", "DisklessTierLag")
    finally:
        tier.unlink()
        moved.rename(tier)
        stop.set()
        writer.join()
    server.ends("DisklessTierFailing", "DisklessTierLag")

    # An agent that answers late.
    others = [slot for slot in cluster.nodes if slot != 4]
    plant(cluster, 4, lambda node: node.faults.slow_down(dict.fromkeys(others, 0.3)))
    for slot in others:
        plant(cluster, slot, lambda node: node.faults.slow_down({4: 0.3}))
    server.fires("DisklessAgentSlow")
    for slot in cluster.nodes:
        plant(cluster, slot, lambda node: node.faults.heal())
    server.ends("DisklessAgentSlow")


@needs_prometheus
@pytest.mark.timeout(400)
def test_a_full_quota_a_bad_drill_and_a_memory_that_is_no_good_cache_are_told(
    watched: tuple[LocalCluster, Prometheus], connect: Connect
) -> None:
    cluster, server = watched
    client = connect(cluster)
    data = content(MIB)
    client.policies.set("/q", "quota", "1MiB")
    client.write("/q/a", data)
    client.tier.drilled(DrillStatus(sound=False, problem="it is short", problems=1))
    server.fires("DisklessQuotaFull", "DisklessTierDrill")
    client.policies.set("/q", "quota", "2MiB")
    client.tier.drilled(DrillStatus(sound=True))
    server.ends("DisklessQuotaFull", "DisklessTierDrill")

    # Every read finds its bytes evicted.
    def read_evicted() -> bool:
        client.tier.flush()
        evict(cluster, "/q/a")
        assert client.read("/q/a") == data
        return "DisklessHitRateLow" in server.firing()

    eventually(read_evicted, 60)
    server.ends("DisklessHitRateLow")

    # Memory that is full, and not of anything that the tier has.
    client.delete("/q/a")
    for slot in cluster.nodes:
        plant(cluster, slot, lambda node: setattr(node.faults, "ballast_bytes", 60 * MIB))
    server.fires("DisklessEvictionStuck")
    for slot in cluster.nodes:
        plant(cluster, slot, lambda node: node.faults.heal())
    server.ends("DisklessEvictionStuck")


@needs_prometheus
@pytest.mark.timeout(400)
@pytest.mark.parametrize("watched", ["no room for an audit"], indirect=True)
def test_a_full_disk_no_room_and_lost_data_are_told(
    watched: tuple[LocalCluster, Prometheus], connect: Connect, tmp_path: Path
) -> None:
    cluster, server = watched
    client = connect(cluster)
    client.write("/a", content(8 * MIB))

    server.fires("DisklessAuditDropped")
    (tmp_path / "audit").unlink()
    (tmp_path / "audit").mkdir()
    server.ends("DisklessAuditDropped")

    # As many names as the namespace takes.
    with pytest.raises(CapacityExceeded, match="the namespace"):
        fill_namespace(client)
    server.fires("DisklessNamespaceFull")
    client.delete("/n", recursive=True)
    server.ends("DisklessNamespaceFull")

    # What an agent held cannot be rebuilt anywhere.
    for slot in range(4):
        plant(cluster, slot, lambda node: setattr(node.faults, "ballast_bytes", 60 * MIB))
    kill(cluster, 4)
    server.fires("DisklessUnprotectable")
    for slot in range(4):
        plant(cluster, slot, lambda node: node.faults.heal())
    cluster.revive(4)
    server.ends("DisklessUnprotectable")
    eventually(lambda: is_whole(client, 5), 60)

    # Two of the agents that only hold shards: more than k.
    kill(cluster, 3, 4)
    server.fires("DisklessDataLost", "DisklessMarginGone")
    cluster.revive(3, 4)
    client.delete("/a")
    server.ends("DisklessDataLost", "DisklessMarginGone")

    # The same two are announced to end, and there is no room elsewhere.
    eventually(lambda: is_whole(client, 5), 60)
    client.write("/b", content(16 * MIB))
    fill(cluster, 0, 1, 2)
    announce(cluster, 3, 4)
    server.fires("DisklessAtStake")
    for slot in (3, 4):
        client.drain(slot, undo=True)
    server.ends("DisklessAtStake")


def fill_namespace(client: Client) -> None:
    for number in itertools.count():
        client.write_many({f"/n/{number}-{n}-{'x' * 200}": b"1" * 2000 for n in range(50)})


@needs_prometheus
@pytest.mark.timeout(400)
def test_a_tier_that_another_cluster_goes_on_with_is_told_until_it_is_detached(
    watched: tuple[LocalCluster, Prometheus], connect: Connect, start: StartCluster, tmp_path: Path
) -> None:
    cluster, server = watched
    client = connect(cluster)
    client.write("/a", b"1")
    client.tier.flush()
    start(agents=3, data_shards=2, parity_shards=1, restore=f"file://{tmp_path}/tier")
    client.write("/b", b"1")
    server.fires("DisklessTierSuperseded")
    client.tier.detach()
    server.ends("DisklessTierSuperseded")
