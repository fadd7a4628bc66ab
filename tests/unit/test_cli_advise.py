"""`diskless advise` from the command line to a live cluster: what it finds, and what it says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import diskless
from diskless.advice.choose import BATCHES_MIN
from diskless.cli import exits
from diskless.client import Client
from diskless.launch.local import LocalCluster
from diskless.notes import BatchNote
from tests.support import eventually, kill
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture
from tests.unit.test_queries import checkpoint, put

QUERY = "6c0e6b0a-0000-4000-8000-000000000000"
BEGIN_MS = 1_800_000_000_000
RUNS = 6


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with diskless.local_cluster(agents=4, data_shards=1, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture
def client(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a cluster without files, the default one meanwhile."""
    monkeypatch.setenv("DISKLESS_CLUSTER", shared.settings.name)
    with shared.connect() as client:
        client._caller.application = ""  # takes no lease, so that the next test may write there
        yield client
        client.delete("/", recursive=True, with_snapshots=True)


def notes(runs: int, *, batches: int = 20) -> list[BatchNote]:
    """Runs of a batch a second, which costs 50 ms; 10 s after each comes the next."""
    found = []
    for run in range(runs):
        at_ms = BEGIN_MS + run * (1000 * batches + 10_000)
        found += [
            BatchNote(
                batches * run + n, at_ms + 1000 * n, rows=10, trigger_ms=500, wal_commit_ms=10,
                commit_offsets_ms=10, add_batch_ms=400, state_commit_ms=60, tasks=2,
                started_ms=at_ms - 1000,
            )
            for n in range(batches)
        ]  # fmt: skip
    return found


def ask(cli: Cli, *arguments: object) -> dict[str, Any]:  # noqa: F811
    outcome = cli("advise", *arguments, "--json")
    assert outcome.status == exits.OK, outcome.err
    found: dict[str, Any] = json.loads(outcome.text)
    return found


def values(settings: list[dict[str, str]]) -> dict[str, str]:
    return {setting["name"]: setting["value"] for setting in settings}


def test_a_query_that_was_noted_is_advised_with_its_inputs(cli: Cli, client: Client) -> None:  # noqa: F811
    put(client, "/ck/q1", checkpoint(12))
    client.note_batches("/ck/q1", QUERY, notes(RUNS))
    found = ask(cli, "/ck/q1")
    (query,) = found["queries"]
    interval = query["interval"]
    assert (query["path"], query["problem"]) == ("/ck/q1", "")
    assert interval["now_s"] == 1.0
    assert interval["checkpoint"]["value"] == pytest.approx(0.05)
    assert interval["checkpoint"]["samples"] == RUNS * 19
    assert (interval["failures"]["seen"], interval["restart"]["samples"]) == (RUNS - 1, RUNS - 1)
    assert interval["restart"]["value"] == pytest.approx(10.5 - 0.5)
    # 5.5 failures in 6 times 20.5 s: one in 22.4 s.
    assert 1 / interval["failures"]["per_s"] == pytest.approx(6 * 20.5 / 5.5)
    assert interval["best_low_s"] < interval["best_s"] < interval["best_high_s"]
    assert interval["best_s"] == pytest.approx((2 * 0.05 * 22.4) ** 0.5, rel=0.05)
    assert query["state"]["whole_bytes"] > 0
    assert query["state"]["changed_bytes"] > 0
    settings = values(query["settings"])
    assert settings[".trigger(processingTime=…)"] == "1 second", "it is good as it is"
    assert {
        "spark.sql.streaming.stateStore.minDeltasForSnapshot",
        "spark.sql.streaming.minBatchesToRetain",
        "spark.sql.streaming.stateStore.maintenanceInterval",
    } < settings.keys()
    told = cli("advise", "/ck/q1").text
    for words in (
        "/ck/q1\n", "now         every 1s", "best        every 1.", "keep it",
        f"({RUNS * 19} batches)", "5 in 2.05m; restarts of the query", "U(T) = r (T - c)",
        "spark.sql.streaming.minBatchesToRetain 100  #",
    ):  # fmt: skip
        assert words in told


def test_wishes_change_the_advice(cli: Cli, client: Client) -> None:  # noqa: F811
    put(client, "/ck/q1", checkpoint(12))
    client.note_batches("/ck/q1", QUERY, notes(RUNS))
    rare = ask(cli, "/ck/q1", "--mtbf", "7d", "--restart", "20s")["queries"][0]["interval"]
    assert rare["best_s"] == pytest.approx((2 * 0.05 * 7 * 86400) ** 0.5 + 0.05, rel=1e-3)
    assert rare["chosen_s"] == 4.9
    assert rare["gain"] == pytest.approx(0.04, abs=0.002)
    bound = ask(cli, "/ck/q1", "--mtbf", "7d", "--latency", "3s")["queries"][0]["interval"]
    assert 1.5 < bound["chosen_s"] < 3
    assert bound["limit"] == "as --latency asks for"
    assert "as --latency asks for" in cli("advise", "/ck/q1", "--mtbf=7d", "--latency=3s").text


def test_too_little_is_said_and_is_no_failure(cli: Cli, client: Client) -> None:  # noqa: F811
    put(client, "/few/q1", checkpoint(12))
    put(client, "/few/q2", checkpoint(12))
    client.note_batches("/few/q2", QUERY, notes(1, batches=3))
    outcome = cli("advise")
    assert outcome.status == exits.OK
    assert "no batch of /few/q1 is known: set the listener" in outcome.text
    assert f"too few batches of /few/q2 are known: 2, of {BATCHES_MIN}" in outcome.text
    first, second = ask(cli)["queries"]
    assert first["problem"].startswith("no batch of /few/q1")
    assert (first["interval"], second["interval"], second["settings"]) == (None, None, [])


def test_notes_of_another_query_at_the_same_place_count_for_nothing(
    cli: Cli,  # noqa: F811
    client: Client,
) -> None:
    put(client, "/other/q1", checkpoint(12))
    client.note_batches("/other/q1", "another", notes(RUNS))
    assert "no batch of /other/q1 is known" in ask(cli, "/other/q1")["queries"][0]["problem"]


def test_where_there_is_no_query_only_the_cluster_is_judged(
    cli: Cli,  # noqa: F811
    client: Client,
) -> None:
    client.write("/plain/file", b"1")
    assert "no checkpoint of a query is in this cluster" in cli("advise").text
    refused = cli("advise", "/plain")
    assert refused.status == exits.NO_RETURN
    assert "no checkpoint of a query at or below /plain" in refused.err
    assert cli("advise", "/nowhere").status == exits.NOT_FOUND
    assert cli("advise", "--mtbf", "often").status == exits.USAGE


def test_a_token_for_a_path_gets_its_query_and_learns_nothing_of_agents(
    cli: Cli,  # noqa: F811
    client: Client,
    shared: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(client, "/ck/q1", checkpoint(12))
    client.note_batches("/ck/q1", QUERY, notes(RUNS))
    monkeypatch.setenv("DISKLESS_TOKEN", shared.token("/ck"))
    found = ask(cli, "/ck/q1")
    assert found["queries"][0]["interval"]["failures"]["seen"] == RUNS - 1
    assert found["cluster"]["failures"] is None
    assert found["cluster"]["agents"] is None
    assert "nothing of agents can be seen" in cli("advise", "/ck/q1").text


def test_agents_that_die_are_counted_from_the_log(
    cli: Cli,  # noqa: F811
    client: Client,
    shared: LocalCluster,
) -> None:
    before = ask(cli)["cluster"]
    assert before["cluster"]["agents"] == 4
    assert before["looked_s"] > 0
    assert "too few for another choice" in before["settings"][0]["why"]
    kill(shared, 3)
    eventually(
        lambda: ask(cli)["cluster"]["failures"]["agents"] == before["failures"]["agents"] + 1
    )
    shared.revive(3)
    eventually(lambda: all(agent.state == "up" for agent in client.status().agents))
    after = ask(cli)["cluster"]
    assert after["failures"]["agents"] == before["failures"]["agents"] + 1, "its return is none"
    assert after["agents"]["seen"] == after["failures"]["agents"]
    assert after["agents"]["low_per_s"] < after["agents"]["per_s"] < after["agents"]["high_per_s"]


def test_events_are_looked_for_by_kind_and_the_log_says_how_far_back_it_reaches(
    client: Client,
) -> None:
    client.write("/a", b"1")
    page = client.look_back(("up", "down"))
    assert {event.kind for event in page.events} <= {"up", "down"}
    assert len(page.events) >= 4
    everything = client.events()
    assert any(event.kind == "put" for event in everything)
    assert page.oldest_ms == everything[0].time_ms
    assert client.look_back(("tier",)).events == []
    assert client.look_back(("tier",)).oldest_ms == page.oldest_ms


def test_plan_uses_the_same_model(cli: Cli) -> None:  # noqa: F811
    found = json.loads(cli("plan", "--json", "--mtbf", "7d", "--checkpoint", "50ms").text)
    assert found["interval"]["best_s"] == pytest.approx(246, abs=1)
    assert found["interval"]["chosen_s"] == 4.9
    assert [plan["name"] for plan in found["plans"]] == ["2+1", "4+2", "8+3", "3 copies"]
    assert "best every 4.1m" in cli("plan", "--mtbf", "7d", "--checkpoint", "50ms").text
    assert cli("plan", "--checkpoint", "0s").status == exits.USAGE
