"""/metrics of real agents: what it tells, to whom, and at what cost."""

import asyncio
import http.client
import random
import socket
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from diskless.agent.counts import EDGES_S
from diskless.config import METRICS_PORT, MIB
from diskless.dashboard import reference
from diskless.dashboard.door import CONNECTIONS_MAX
from diskless.dashboard.metrics import AGENT, CLUSTER, QUOTAS_MAX, lines
from diskless.dashboard.own import Own
from diskless.dashboard.scrape import SLICE_LINES, Scrape
from diskless.identity.certificates import Certificates, client_context
from diskless.launch.local import LocalCluster
from diskless.model import (
    AgentStatus,
    ClusterStatus,
    DrillStatus,
    QuotaStatus,
    TierReport,
    VoterStatus,
)
from tests.cluster.prometheus import needs_promtool, promtool
from tests.cluster.test_by_path import know_grades
from tests.cluster.test_eviction import evict
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, content, eventually, is_whole, kill, leader, on_loop
from tests.unit.work import work_of

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
FILE_BYTES = 300_000
PATIENT = replace(STRIPED, hedge_delay_s=20.0)
"""No read does without a shard because the machine is busy."""


@pytest.fixture
def cluster(start: StartCluster) -> LocalCluster:
    return start(
        agents=4, data_shards=2, parity_shards=1, tuning=PATIENT, metrics_port=METRICS_PORT
    )


def address(cluster: LocalCluster, slot: int) -> tuple[str, int]:
    door = cluster.nodes[slot].doors.http
    assert door is not None
    url = urlsplit(door.address)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def ask(
    cluster: LocalCluster,
    slot: int,
    path: str = "/metrics",
    token: str | None = None,
) -> tuple[int, str]:
    host, port = address(cluster, slot)
    shown = cluster.token("/nothing", writes=False) if token is None else token
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        given = {"Authorization": f"Bearer {shown}"} if shown else {}
        connection.request("GET", path, headers=given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def scrape(cluster: LocalCluster, slot: int) -> Samples:
    status, text = ask(cluster, slot)
    assert status == 200, text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(cluster: LocalCluster, name: str, **labels: str) -> float:
    wanted = tuple(sorted(labels.items()))
    return sum(scrape(cluster, slot).get((name, wanted), 0.0) for slot in cluster.nodes)


# What it tells.


def test_agents_tell_what_was_written_and_read(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    data = content(FILE_BYTES)
    client.write("/a", data)
    client.write_many({"/b": data, "/c": b""})
    assert client.read("/a") == data
    assert total(cluster, "diskless_commit_duration_seconds_count") == 2
    assert total(cluster, "diskless_commit_duration_seconds_bucket", le="+Inf") == 2
    assert total(cluster, "diskless_committed_files_total") == 3
    assert total(cluster, "diskless_committed_bytes_total") == 2 * FILE_BYTES
    assert total(cluster, "diskless_read_duration_seconds_count") >= 1
    assert total(cluster, "diskless_read_bytes_total") == FILE_BYTES
    assert total(cluster, "diskless_degraded_reads_total") == 0
    assert total(cluster, "diskless_commit_duration_seconds_sum") > 0


def test_the_leader_and_nobody_else_tells_of_the_cluster(
    cluster: LocalCluster, connect: Connect
) -> None:
    client = connect(cluster)
    client.write("/a", content(6 * MIB))
    leads = leader(cluster).slot
    for slot in cluster.nodes:
        found = scrape(cluster, slot)
        assert (("diskless_margin", ()) in found) == (slot == leads)
        assert found["diskless_leads", ()] == (slot == leads)
    found, status = scrape(cluster, leads), client.status()
    assert found["diskless_margin", ()] == status.margin == 1
    assert found["diskless_files", ()] == status.files == 1
    assert found["diskless_agents", (("state", "up"),)] == 4
    assert found["diskless_stripes", (("health", "healthy"),)] == status.stripes.total > 0
    assert found["diskless_tier_attached", ()] == 0
    assert ("diskless_tier_lag_seconds", ()) not in found
    shards = found["diskless_memory_bytes", (("kind", "shards"),)]
    assert shards > 0
    eventually(lambda: client.status().agents[leads].memory["shards"] == shards)
    assert found["process_resident_memory_bytes", ()] > 0


def test_a_loss_and_the_reads_around_it_are_seen(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    data = content(3 * MIB)
    client.write("/a", data)
    gone = next(slot for slot in cluster.nodes if slot != leader(cluster).slot)
    kill(cluster, gone)
    found = scrape(cluster, leader(cluster).slot)
    assert found["diskless_agent_up", (("agent", f"agent-{gone}"),)] == 0
    assert found["diskless_agents", (("state", "down"),)] == 1
    assert client.read("/a") == data
    cluster.revive(gone)
    eventually(lambda: is_whole(client, 4))
    assert scrape(cluster, leader(cluster).slot)["diskless_margin", ()] == 1


def test_reads_that_do_without_a_shard_are_counted(start: StartCluster, connect: Connect) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1, metrics_port=METRICS_PORT)
    client = connect(cluster)
    client.write("/a", content(3 * MIB))
    kill(cluster, next(slot for slot in cluster.nodes if slot != leader(cluster).slot))
    client.read("/a")
    eventually(lambda: client.read("/a") and total(cluster, "diskless_degraded_reads_total") > 0)


def test_a_new_leader_tells_and_the_view_is_counted(
    cluster: LocalCluster, connect: Connect
) -> None:
    before = leader(cluster)
    views = scrape(cluster, before.slot)["diskless_leader_changes_total", ()]
    kill(cluster, before.slot)
    after = leader(cluster)
    eventually(lambda: ("diskless_margin", ()) in scrape(cluster, after.slot))
    assert scrape(cluster, after.slot)["diskless_leader_changes_total", ()] > views


def test_errors_and_refusals_are_told_by_reason(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    with pytest.raises(FileNotFoundError):
        client.read("/none")
    assert total(cluster, "diskless_client_errors_total", reason="NotFound") >= 1
    assert ask(cluster, 0, token="")[0] == 401
    assert total(cluster, "diskless_refused_total", door="http", reason="no token") == 1


def test_with_a_tier_its_lag_is_told(start: StartCluster, connect: Connect, tmp_path: Path) -> None:
    cluster = start(
        agents=3, data_shards=2, parity_shards=1, tier=f"file://{tmp_path}/tier",
        metrics_port=METRICS_PORT,
    )  # fmt: skip
    client = connect(cluster)
    client.write("/a", b"1")
    client.tier.flush(timeout_s=30)
    found = scrape(cluster, leader(cluster).slot)
    assert found["diskless_tier_attached", ()] == 1
    assert found["diskless_tier_state", (("state", "draining"),)] == 1
    assert found["diskless_tier_lag_seconds", ()] >= 0
    assert found["diskless_tier_horizon", ()] > 0
    assert found["diskless_tier_put_bytes_total", ()] > 0


def test_rounds_that_fail_are_counted(
    start: StartCluster, connect: Connect, tmp_path: Path
) -> None:
    tier = tmp_path / "tier"
    cluster = start(
        agents=3, data_shards=1, parity_shards=1, tier=f"file://{tier}", metrics_port=METRICS_PORT
    )
    client = connect(cluster)
    client.tier.flush()
    assert total(cluster, "diskless_tier_failed_rounds_total") == 0
    assert total(cluster, "diskless_tier_failed_requests_total") == 0
    tier.rename(tmp_path / "away")
    tier.write_bytes(b"no directory")
    client.write("/a", b"1")
    eventually(lambda: total(cluster, "diskless_tier_failed_rounds_total") > 1)
    assert total(cluster, "diskless_tier_failed_requests_total") > 0
    assert client.status().tier.rounds_failed > 1
    tier.unlink()
    (tmp_path / "away").rename(tier)
    client.tier.flush()


def test_evictions_drills_quotas_and_leases_are_told(
    start: StartCluster, connect: Connect, tmp_path: Path
) -> None:
    cluster = start(
        agents=4, data_shards=2, parity_shards=1, tuning=STRIPED, metrics_port=METRICS_PORT,
        tier=f"file://{tmp_path}/tier",
    )  # fmt: skip
    client = connect(cluster)
    client.policies.set("/thin", "parity", "0")
    client.policies.set("/q", "quota", "3MiB")
    know_grades(cluster)
    client.write("/thin/a", content(FILE_BYTES))
    client.write("/q/a", content(2 * MIB))
    client.write("/c/q1/metadata", b"{}")
    client.write("/c/q1/offsets/0", b"1")
    found = scrape(cluster, leader(cluster).slot)
    assert ("diskless_tier_drill_sound", ()) not in found, "nobody has tried"
    assert found["diskless_class_margin", (("parity", "1"),)] == 1
    assert found["diskless_class_margin", (("parity", "0"),)] == 0
    assert found["diskless_quota_used_bytes", (("path", "/q"),)] == 2 * MIB
    assert found["diskless_quota_max_bytes", (("path", "/q"),)] == 3 * MIB
    assert found["diskless_leases", ()] == 1
    assert client.read("/q/a") == content(2 * MIB)
    assert total(cluster, "diskless_cache_hits_total") > 0
    assert total(cluster, "diskless_cache_misses_total") == 0
    client.tier.flush()
    assert evict(cluster, "/q/a") == 1
    assert scrape(cluster, leader(cluster).slot)["diskless_evicted_bytes", ()] == 2 * MIB
    assert client.read("/q/a") == content(2 * MIB)
    assert total(cluster, "diskless_cache_misses_total") > 0
    assert total(cluster, "diskless_cache_wait_seconds_total") > 0
    client.tier.drilled(DrillStatus(sound=False, problem="no", problems=2, serves_s=3.0))
    found = scrape(cluster, leader(cluster).slot)
    assert found["diskless_eviction_state", (("state", "idle"),)] == 1
    assert found["diskless_tier_state", (("state", "closed"),)] == 0
    assert found["diskless_tier_drill_sound", ()] == 0
    assert found["diskless_tier_drill_problems", ()] == 2
    assert abs(found["diskless_tier_drill_timestamp_seconds", ()] - time.time()) < 3600


def test_of_many_quotas_the_fullest_are_told() -> None:
    (spec,) = [spec for spec in CLUSTER if spec.name == "diskless_quota_used_bytes"]
    quotas = [QuotaStatus(path=f"/{n}", bytes_max=10 * (n + 1), bytes_used=10) for n in range(1000)]
    told = spec.read(
        ClusterStatus(parity_shards=1, margin=1, margin_hosts=1, agents=[], quotas=quotas)
    )
    assert [path for (path,), _ in told] == [f"/{n}" for n in range(QUOTAS_MAX)]


# Where, and for whom.


def free_base(ports: int) -> int:
    """A port with so many free ones after it; none of those that connections get by themselves."""
    while True:
        base = random.randrange(20_000, 32_000)
        sockets = []
        try:
            for port in range(base, base + ports):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return base
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()


def test_agents_have_the_port_and_those_after_it_and_status_names_them(
    start: StartCluster, connect: Connect
) -> None:
    base = free_base(4)
    with socket.create_server(("127.0.0.1", base + 1)):
        cluster = start(agents=3, data_shards=1, parity_shards=1, metrics_port=base)
        assert address(cluster, 0) == ("127.0.0.1", base)
        assert address(cluster, 2) == ("127.0.0.1", base + 2)
        host, port = address(cluster, 1)
        assert host == "127.0.0.1"
        assert port not in range(base, base + 3)
        client = connect(cluster)
        told = [f"http://{host}:{port}" for host, port in (address(cluster, s) for s in range(3))]
        eventually(lambda: [agent.http for agent in client.status().agents] == told)
    cluster.kill(1)
    cluster.revive(1)
    assert address(cluster, 1) == ("127.0.0.1", base + 1)


def test_nothing_listens_if_it_is_turned_off(start: StartCluster, connect: Connect) -> None:
    cluster = start(agents=3, data_shards=1, parity_shards=1)
    assert all(node.doors.http is None for node in cluster.nodes.values())
    assert {agent.http for agent in connect(cluster).status().agents} == {""}


def test_any_good_token_of_a_client_will_do_and_no_other_key(
    cluster: LocalCluster, start: StartCluster, connect: Connect
) -> None:
    keyring = cluster.keyring
    good = keyring.client("prometheus", paths=["/nothing"], writes=False)
    assert ask(cluster, 0, token=good.token)[0] == 200
    other = start(agents=3, data_shards=1, parity_shards=1)
    flipped = good.token[:-2] + ("A" if good.token[-2] != "A" else "B") + good.token[-1]
    for bad in (
        keyring.admin().token,
        keyring.agent("agent-1").token,
        keyring.client("old", expires_s=int(time.time()) - 1).token,
        other.token("/"),
        flipped,
        good.token + "A",
        good.text,
        "d1..",
    ):
        status, text = ask(cluster, 0, token=bad)
        assert (status, text) == (401, "a token is needed: see `diskless token create --help`\n")
    connect(cluster).revoke_token("prometheus")
    eventually(lambda: ask(cluster, 0, token=good.token)[0] == 401)


def test_without_a_token_nothing_is_told_whatever_is_sent(cluster: LocalCluster) -> None:
    random_seed = random.randrange(2**32)
    print(f"seed {random_seed}")
    source = random.Random(random_seed)
    secrets = {cluster.cluster_id, cluster.settings.name, "agent-", "diskless_"}
    paths = ["/metrics", "/none", "/metrics/", "//metrics", "/api/live", "/api/events?after=0"]
    paths += ["/api/path?path=/", "/%00", "/.."]
    for path in paths:
        status, text = ask(cluster, 0, path, token="")
        assert status == 401
        assert not any(secret in text for secret in secrets)
    for _ in range(200):
        sent = b"".join(
            source.choice(
                (b"GET ", b"/metrics", b" HTTP/1.1\r\n", b"Authorization: Bearer ", b"\r\n\r\n",
                 b"Content-Length: 9\r\n", b"Host: x\r\n", source.randbytes(9), b"POST / HTTP/1.1",
                 b"GET /api/live HTTP/1.1\r\n", b"GET /api/", b"list?path=/", b"%2e%2e/")
            )
            for _ in range(source.randrange(1, 12))
        )  # fmt: skip
        with socket.create_connection(address(cluster, 0), timeout=30) as knock:
            knock.sendall(sent)
            knock.shutdown(socket.SHUT_WR)
            heard = b""
            try:
                while part := knock.recv(65536):
                    heard += part
            except ConnectionError:
                pass
        assert b" 200 " not in heard
        assert not any(secret.encode() in heard for secret in secrets)
    assert ask(cluster, 0)[0] == 200


def test_strangers_take_no_place_of_whoever_has_a_token(cluster: LocalCluster) -> None:
    host, port = address(cluster, 0)
    known = http.client.HTTPConnection(host, port, timeout=30)
    token = {"Authorization": f"Bearer {cluster.token('/')}"}
    known.request("GET", "/metrics", headers=token)
    assert known.getresponse().read()
    strangers = [socket.create_connection((host, port)) for _ in range(CONNECTIONS_MAX + 40)]
    door = cluster.nodes[0].doors.http
    assert door is not None
    eventually(lambda: on_loop(cluster, lambda: door.connections) >= CONNECTIONS_MAX - 1)
    eventually(lambda: on_loop(cluster, lambda: door.connections) <= CONNECTIONS_MAX)
    same = known.sock
    known.request("GET", "/metrics", headers=token)
    assert known.getresponse().status == 200
    assert known.sock is same, "it was not ended"
    assert ask(cluster, 0)[0] == 200
    for one in [*strangers, known]:
        one.close()


def test_memory_counts_connections_to_it(cluster: LocalCluster) -> None:
    host, port = address(cluster, 0)
    node = cluster.nodes[0]
    before = on_loop(cluster, lambda: node.memory.by_kind()["connections"])
    knocks = [socket.create_connection((host, port)) for _ in range(10)]
    eventually(lambda: on_loop(cluster, lambda: node.memory.by_kind()["connections"]) > before)
    for knock in knocks:
        knock.close()
    eventually(lambda: on_loop(cluster, lambda: node.memory.by_kind()["connections"]) == before)


# What it costs, and that the page about it is true.


class Large(Own):
    """A leader of as many agents as one likes."""

    def __init__(self, own: Own, agents: int) -> None:
        self._read, self._agents = own.read, agents

    def read(self):  # type: ignore[no-untyped-def]
        return self._read()

    def cluster(self) -> ClusterStatus:
        return ClusterStatus(
            parity_shards=2, margin=2, margin_hosts=1,
            agents=[AgentStatus(slot=f"agent-{n}", state="up") for n in range(self._agents)],
            voters=[VoterStatus(slot=f"agent-{n}", role="follower", lag=0) for n in range(5)],
            tier=TierReport(uri="file:///t", state="draining"),
        )  # fmt: skip


def slices(node_own: Own) -> list[int]:
    """Lines of ours that run between two turns of others, in one scrape."""
    found: list[int] = []

    async def run() -> None:
        text = Scrape(node_own).text()
        steps = text.__await__()
        more = True

        def step() -> None:
            nonlocal more
            try:
                next(steps)
            except StopIteration:
                more = False

        while more:
            found.append(work_of(step).lines)

    asyncio.run(run())
    return found


def test_a_scrape_takes_turns_and_costs_the_same_whatever_is_stored(
    cluster: LocalCluster, connect: Connect
) -> None:
    node = leader(cluster)
    door = node.doors.http
    assert door is not None
    own = node.doors.own
    assert own is not None
    client = connect(cluster)

    def dearest() -> int:
        """Of scrapes that come right after a change: then they have most to compute."""
        found = []
        for _ in range(5):
            client.write("/small", content(9, 1), overwrite=True)
            found.append(on_loop(cluster, lambda: work_of(Scrape(own).collect).lines))
        return max(found)

    client.write("/large", content(2 * MIB))  # both kinds of counters have something to tell
    few = dearest()
    client.write_many({f"/many/{n}": content(9, n) for n in range(500)})
    client.write("/big", content(4 * MIB))
    many = dearest()
    assert many < 1.2 * few
    assert few < 3000
    ten, hundred = slices(Large(own, 10)), slices(Large(own, 100))
    assert len(hundred) > len(ten) > 2
    assert max(hundred[1:]) < 15 * SLICE_LINES
    assert max(ten) < 3500


@needs_promtool
def test_promtool_finds_nothing_wrong(
    start: StartCluster, connect: Connect, tmp_path: Path
) -> None:
    cluster = start(
        agents=3, data_shards=1, parity_shards=1, tier=f"file://{tmp_path}/tier",
        metrics_port=METRICS_PORT,
    )  # fmt: skip
    connect(cluster).write("/a", b"1")
    with pytest.raises(FileNotFoundError):
        connect(cluster).read("/none")
    status, text = ask(cluster, leader(cluster).slot)
    assert status == 200
    assert text.startswith("# HELP diskless_info ")
    promtool("check", "metrics", given=text)


def test_what_is_in_a_label_is_escaped() -> None:
    spec = next(spec for spec in AGENT if spec.name == "diskless_client_errors_total")
    said = 'a "b"\\c\nd'
    text = "\n".join([*lines((spec, [((said,), 1.5)])), ""])
    (family,) = text_string_to_metric_families(text)
    assert [(one.labels, one.value) for one in family.samples] == [({"reason": said}, 1.5)]


def test_names_follow_the_conventions_and_each_has_help() -> None:
    specs = [*AGENT, *CLUSTER]
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.name.startswith("diskless_")
        assert spec.help.endswith(".")
        assert (spec.kind == "counter") == spec.name.endswith("_total")
    assert list(EDGES_S) == sorted(EDGES_S)


def test_the_page_about_metrics_is_made_from_them() -> None:
    page = Path(reference.__file__).parents[2] / "docs/metrics.md"
    assert page.read_text() == reference.page(), (
        "run python -m diskless.dashboard.reference > docs/metrics.md"
    )


# Beyond loopback.


def test_other_hosts_are_told_by_tls_or_not_at_all(start: StartCluster, tmp_path: Path) -> None:
    cluster = start(agents=3, data_shards=1, parity_shards=1, tls=True, metrics_port=METRICS_PORT)
    node = cluster.nodes[0]
    door = node.doors.http
    assert door is not None
    assert door.address.startswith("http://127.0.0.1:"), "loopback needs none"

    async def again(tls: Certificates | None) -> str:
        await door.stop()
        await door.start("0.0.0.0", 0, tls)
        return door.address

    assert cluster.run(again(None)).startswith("http://127.0.0.1:")
    address = urlsplit(cluster.run(again(node.settings.tls)))
    assert (address.scheme, address.hostname) == ("https", "0.0.0.0")
    assert cluster.authority is not None
    context = client_context(cluster.authority.chain)
    shown = {"Authorization": f"Bearer {cluster.token('/')}"}
    for renewed in (False, True):
        if renewed:
            cluster.renew(0)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", address.port, context=context, timeout=30
        )
        connection.request("GET", "/metrics", headers=shown)
        assert connection.getresponse().status == 200
        connection.close()


def test_callers_that_never_end_their_tls_make_room_for_others(start: StartCluster) -> None:
    cluster = start(agents=3, data_shards=1, parity_shards=1, tls=True, metrics_port=METRICS_PORT)
    node = cluster.nodes[0]
    door = node.doors.http
    assert door is not None

    async def again() -> str:
        await door.stop()
        await door.start("0.0.0.0", 0, node.settings.tls)
        return door.address

    port = urlsplit(cluster.run(again())).port
    assert port is not None
    assert cluster.authority is not None
    context = client_context(cluster.authority.chain)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX + 20)]

    def let_go() -> int:
        return sum(is_closed(one) for one in silent)

    eventually(lambda: let_go() >= 20, 30.0)  # the event loop's own TLS gives them a minute
    assert let_go() < CONNECTIONS_MAX, "only as many as need be"
    silent[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
    eventually(lambda: is_closed(silent[-1]))
    shown = {"Authorization": f"Bearer {cluster.token('/')}"}
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    connection.request("GET", "/metrics", headers=shown)
    assert connection.getresponse().status == 200
    connection.close()
    assert on_loop(cluster, lambda: door.connections) <= CONNECTIONS_MAX
    for one in silent:
        one.close()


def is_closed(caller: socket.socket) -> bool:
    """Whether the other side has closed it; what came before is thrown away."""
    caller.setblocking(False)
    try:
        while caller.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
