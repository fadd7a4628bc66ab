"""`diskless tier` and `diskless policy`, and what `up` says of a tier before anything starts."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import diskless
from diskless.cli import exits
from diskless.cli.tier_lines import tier_lines
from diskless.cli.tier_options import lag_max_s, moment_of, tier_address
from diskless.client import Client, descriptor
from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings
from diskless.errors import BadRequest, ClusterExists
from diskless.launch import tiers
from diskless.launch.local import LocalCluster
from diskless.launch.record import refuse_dead
from diskless.model import EvictionStatus, HydrationStatus, TierReport
from diskless.operate import parking
from diskless.operate.running import refuse_other
from diskless.spark.checkpoints import Checkpoint, find_checkpoints
from diskless.tier.restore import At
from tests.support import content
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture

SMALL = {"agents": 3, "data_shards": 1, "parity_shards": 1}
MIB = 1 << 20


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('tier')}"


@pytest.fixture(scope="module")
def cluster(uri: str) -> Iterator[LocalCluster]:
    with diskless.local_cluster(**SMALL, tier=uri) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of the cluster, which is the default one meanwhile."""
    monkeypatch.setenv("DISKLESS_CLUSTER", cluster.settings.name)
    with cluster.connect() as client:
        yield client


# Policies.


def test_a_policy_is_set_shown_with_its_source_and_removed(cli: Cli, client: Client) -> None:  # noqa: F811
    assert cli("policy", "set", "/p/q", "durability=sync").text == "/p/q: durability=sync\n"
    assert "as before" in cli("policy", "set", "/p/q", "durability=sync").text
    assert cli("policy", "show", "/p/q/r").text.startswith("durability=sync  set on /p/q\n")
    shown = cli("policy", "show", "/p", "--json").json
    assert {"key": "durability", "value": "async", "source": ""} in shown["policies"]
    assert {"key": "pin", "value": "no", "source": ""} in shown["policies"]
    cli("policy", "set", "/p/q", "durability=barrier")
    assert "not for Real-Time Mode" in cli("policy", "show", "/p/q/r").text
    told = cli("policy", "show", "/p/q/r", "--json").json["barrier"]
    assert "asynchronous progress tracking" in told["not_covered"]
    assert client.status().tier.barrier_paths == ["/p/q"]  # type: ignore[union-attr]
    assert cli("policy", "rm", "/p/q").text == "/p/q: policies removed\n"
    assert cli("policy", "rm", "/p/q", "durability").text == "/p/q had no durability\n"
    assert "the cluster's default" in cli("policy", "show", "/p/q/r").text


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("durability=never", "memory, async, barrier, sync"),
        ("colour=red", "there is durability"),
        ("durability", "write for example durability=barrier"),
    ],
)
def test_bad_policies_are_refused_with_the_good_ones(
    cli: Cli,  # noqa: F811
    client: Client,
    entry: str,
    says: str,
) -> None:
    refused = cli("policy", "set", "/p", entry)
    assert refused.status == exits.USAGE
    assert says in refused.err


def test_sync_is_refused_without_a_tier(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    with diskless.local_cluster(**SMALL) as bare:
        monkeypatch.setenv("DISKLESS_CLUSTER", bare.settings.name)
        shown = cli("policy", "show", "/").text
        assert shown.startswith("durability=memory  the cluster's default\n")
        refused = cli("policy", "set", "/p", "durability=sync")
        assert refused.status == exits.USAGE
        assert "--tier URI" in refused.err
        assert "has no tier" in cli("tier", "flush").err
        assert "has no tier: name one" in cli("tier", "verify").err


# The tier.


def test_flush_waits_until_the_tier_has_all_and_status_and_verify_agree(
    cli: Cli,  # noqa: F811
    client: Client,
    uri: str,
) -> None:
    client.write("/flushed/small", b"1")
    client.write("/flushed/large", content(5 * MIB))
    flushed = cli("tier", "flush", "--wait", "--json").json
    assert (flushed["behind"], flushed["uri"]) == (0, uri)
    assert flushed["horizon"] >= flushed["change"] > 0
    status = cli("tier", "status", "--json").json
    assert status["newest"]["position"] == flushed["horizon"]
    assert status["cluster"]["newest"] == flushed["newest"]
    assert cli("tier", "status", uri, "--json").json["newest"] == status["newest"]
    sound = cli("tier", "verify", "--full")
    assert (sound.status, sound.err) == (exits.OK, "")
    assert "is sound" in sound.text
    assert cli("tier", "gc", "--dry-run", "--json").json["deleted"] == 0


def test_verify_names_what_is_damaged(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    place = f"file://{tmp_path}"
    with diskless.local_cluster(**SMALL, tier=place) as other, other.connect() as client:
        client.write("/a", content(6 * MIB))
        client.tier.flush()
    (segment, *_) = sorted((tmp_path / "segments").iterdir())
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    assert cli("tier", "verify", place).status == exits.OK, "nothing is read but manifests"
    told = cli("tier", "verify", "--full", place)
    assert told.status == exits.UNREADABLE
    assert segment.name in told.err


def test_a_process_that_used_a_store_ends_whatever_threads_of_its_library_do() -> None:
    program = """
import atexit, sys, threading, types
sys.modules["obstore"] = types.ModuleType("obstore")
threading.Thread(target=threading.Event().wait).start()
atexit.register(print, "cleared away")
sys.argv = ["diskless", "nothing-of-this-name"]
from diskless.cli import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (exits.USAGE, "cleared away\n")


def test_a_place_without_a_tier_is_said_to_hold_none(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    place = f"file://{tmp_path}"
    assert cli("tier", "status", place).text == f"{place} holds no tier yet\n"
    assert cli("tier", "verify", place).status == exits.UNREADABLE
    refused = cli("up", "--name", "nowhere", "--restore", place)
    assert refused.status == exits.NOT_FOUND
    assert "holds no tier" in refused.err


def test_a_tier_is_detached_from_a_cluster_that_lives_and_stays_readable(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = f"file://{tmp_path}"
    with diskless.local_cluster(**SMALL, tier=place) as other, other.connect() as client:
        monkeypatch.setenv("DISKLESS_CLUSTER", other.settings.name)
        client.write("/a", b"1")
        client.policies.set("/s", "durability", "sync")
        client.tier.flush()
        refused = cli("tier", "detach")
        assert refused.status == exits.USAGE
        assert "/s asks for durability=sync" in refused.err
        client.policies.remove("/s")
        assert "has no tier any more" in cli("tier", "detach").text
        assert descriptor.load(other.settings.name).settings["tier"] == ""
        client.write("/b", b"2")
        assert client.read("/a") == b"1"
        assert "has no tier: name one" in cli("tier", "verify").err
        assert cli("tier", "verify", place).status == exits.OK


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (TierReport(uri="u", state="draining"), "nothing behind"),
        (TierReport(uri="u", state="draining", lag_s=2, lag_commands=3), "2.0 s behind (3 comm"),
        (TierReport(uri="u", state="failing", last_error="StoreDown: x", failing_s=61),
         "failing for 61 s: StoreDown: x"),
        (TierReport(uri="u", state="superseded", last_error="Superseded: y"), "SUPERSEDED"),
        (TierReport(uri="u", state="draining", held=2), "2 answers wait"),
        (TierReport(uri="u", state="draining", distance_s=0.6, distance_why="few wait"),
         "a round every 0.6 s at most: few wait"),
        (TierReport(uri="u", state="draining", barriers=3, barrier_paths=["/a", "/b"]),
         "barrier: /a, /b and 1 more: exactly-once for sinks that commit a whole batch under its "
         "id, after its job; not for Real-Time Mode, asynchronous progress tracking, sinks that "
         "commit by task"),
        (TierReport(uri="u", state="draining", hydration=HydrationStatus(files_left=7, eta_s=9)),
         "7 files and 0 B are in the tier alone, 0 B/s, about 9 s"),
        (TierReport(uri="u", state="draining", eviction=EvictionStatus(
            files=3, bytes=4096, hits=3, misses=1, hit_rate=0.75, hydration_ms=8.0)),
         "3 files and 4.0 KiB are in the tier alone to save memory; 75.0% of reads found their "
         "bytes in memory, others waited 8 ms"),
        (TierReport(uri="u", state="draining", eviction=EvictionStatus(state="stuck")),
         "memory is full of what the tier has not"),
    ],
)  # fmt: skip
def test_status_says_how_far_the_tier_is_and_what_is_wrong(report: TierReport, says: str) -> None:
    assert says in "\n".join(tier_lines(report))
    assert tier_lines(None) == []


# Before anything starts.


def untouched(name: str) -> bool:
    return not descriptor.descriptor_path(name).exists()


def test_up_refuses_the_tier_of_another_cluster(cli: Cli, cluster: LocalCluster, uri: str) -> None:  # noqa: F811
    with cluster.connect() as client:
        client.write("/first", b"1", overwrite=True)
        client.tier.flush()
    refused = cli("up", "--name", "other", "--tier", uri)
    assert refused.status == exits.SUPERSEDED
    assert f"is the tier of cluster {cluster.settings.name}" in refused.err
    assert f"up --restore {uri}" in refused.err
    assert refused.err.count("\n") == 1
    assert untouched("other")


def write_key(path: Path) -> Path:
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return path


def test_a_wrong_key_is_said_at_once(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    place = f"file://{tmp_path / 'tier'}"
    good, bad = write_key(tmp_path / "good"), write_key(tmp_path / "bad")
    settings = ClusterSettings(
        name="sealed", agents=3, data_shards=1, parity_shards=1, tier_key=str(good)
    )
    with LocalCluster(settings, tier=place) as sealed, sealed.connect() as client:
        client.write("/a", b"in the clear nowhere")
        client.tier.flush()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"in the clear nowhere" not in stored
    for wrong in (["--tier-key", str(bad)], []):
        refused = cli("up", "--name", "other", "--restore", place, *wrong)
        assert refused.status == exits.TIER_REFUSED
        assert refused.err.count("\n") == 1
        assert untouched("other")
    assert cli("tier", "verify", "--full", place, "--tier-key", good).status == exits.OK


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tier", "ftp://a/b"], "begins with one of"),
        (["--tier", "s3://me:secret@bucket/p"], "holds no credentials"),
        (["--durability", "sync"], "--durability is of no use without a --tier"),
        (["--tier-key", "/k"], "--tier-key is of no use without a --tier"),
        (["--tier", "file:///t", "--tier-key", "k"], "give a whole path"),
        (["--tier", "file:///t", "--tier-keep", "all"], "is no rule such as"),
        (["--tier", "file:///t", "--lag-max", "soon"], "write for example 5s"),
        (["--at", "7"], "it needs --restore URI"),
        (["--tier", "file:///a", "--restore", "file:///b"], "leave out --tier"),
        (["--restore", "file:///b", "--reset"], "choose one"),
        (["--restore", "file:///b", "--at", "yesterday"], "--at 'yesterday'"),
    ],
)
def test_options_of_a_tier_that_make_no_sense_are_refused(
    cli: Cli,  # noqa: F811
    options: list[str],
    says: str,
) -> None:
    refused = cli("up", "--name", "senseless", *options)
    assert refused.status == exits.USAGE
    assert says in refused.err
    assert "secret" not in refused.err
    assert untouched("senseless")


def test_what_the_options_mean() -> None:
    assert moment_of(None) == At()
    assert moment_of("1234") == At(op=1234)
    assert moment_of("1970-01-01T00:00:05+00:00") == At(time_ms=5000)
    assert (lag_max_s(None), lag_max_s("90s"), lag_max_s("2m")) == (None, 90.0, 120.0)
    assert tier_address(None, "file:///a", None, reset=False) == "file:///a"
    with pytest.raises(BadRequest):
        tier_address(None, None, "5", reset=False)


def test_a_tier_may_be_added_to_a_cluster_that_has_none_and_changed_nowhere() -> None:
    has = Descriptor(cluster="c", name="n", settings=ClusterSettings(name="n").to_dict())
    wants = ClusterSettings(name="n", tier="file:///a", durability="sync")
    refuse_other(has, wants, "")
    with pytest.raises(ClusterExists, match="tier file:///a, not file:///b"):
        refuse_other(
            Descriptor(cluster="c", name="n", settings=wants.to_dict()),
            ClusterSettings(name="n", tier="file:///b", durability="sync"),
            "",
        )


# Between two lives.


def test_a_parked_cluster_keeps_its_keys_and_says_how_it_comes_back() -> None:
    settings = ClusterSettings(name="parked", tier="file:///a")
    known = Descriptor(cluster="c", name="parked", key="0" * 64, settings=settings.to_dict())
    parked = parking.park(known)
    try:
        assert descriptor.load("parked") == parked
        with pytest.raises(diskless.errors.Unavailable, match="up --restore file:///a --cluster"):
            refuse_dead(parked)
        fresh = Descriptor(cluster="d", name="parked", key="1" * 64)
        back = parking.unpark(parked, fresh)
        assert (back.cluster, back.key, back.parked) == ("c", "0" * 64, False)
        parking.refuse_alive(parked)
    finally:
        descriptor.remove("parked")


def test_a_cluster_that_answers_is_not_restored_over(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterExists, match="is alive"):
        parking.refuse_alive(descriptor.load(cluster.settings.name))


def test_checkpoints_of_spark_are_found_with_their_last_committed_batch(client: Client) -> None:
    client.write_many({f"/spark/a/offsets/{n}": b"o" for n in range(12)})
    client.write_many({f"/spark/a/commits/{n}": b"c" for n in range(11)})
    client.write("/spark/a/commits/.10.crc", b"c")
    client.write("/spark/deep/er/b/offsets/0", b"o")
    client.mkdirs("/spark/deep/er/b/commits")
    client.write("/spark/no/offsets/0", b"o")
    assert list(find_checkpoints(client, "/spark")) == [
        Checkpoint("/spark/a", 10),
        Checkpoint("/spark/deep/er/b", None),
    ]


def test_a_restore_finds_the_state_at_a_position_and_says_what_it_would_take(
    client: Client, uri: str, cluster: LocalCluster
) -> None:
    client.write("/at", b"1", overwrite=True)
    before = client.tier.flush()
    client.write("/at", b"2", overwrite=True)
    client.tier.flush()
    found = tiers.look(tiers.TierSettings(uri=uri))
    assert found.newest is not None
    assert found.newest.cluster == cluster.cluster_id
    settings = ClusterSettings(tier=uri)
    assert tiers.check_restore(settings, At(op=before.horizon)).op <= before.horizon
    assert tiers.check_restore(settings, At()).op == found.newest.op
    with pytest.raises(diskless.errors.NotFound, match="at or before"):
        tiers.check_restore(settings, At(time_ms=5))
