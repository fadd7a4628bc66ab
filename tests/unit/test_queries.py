"""Checkpoints as Spark writes them, judged by its rules: pure, and through the command line."""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskless
from diskless.checkpoint import facts, logs, rollback_rules
from diskless.checkpoint.names import LogFile, StateFile, Store, parse_log, parse_state
from diskless.checkpoint.picture import FileInfo, Picture
from diskless.cli import exits
from diskless.cli import query as query_verbs
from diskless.client import Client
from diskless.errors import AlreadyExists, CannotReturn, CheckpointInUse, NotFound, UnknownFormat
from diskless.launch.local import LocalCluster
from diskless.spark import queries
from diskless.spark.queries import access
from diskless.spark.queries.trace import Flow, other_sources, plain, reach
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture

ID = "0d5f8ca4-1bca-4a2f-a9a2-118733e0{:04x}"
PARTITIONS = 2


def plan(batch: int, *, partitions: int = PARTITIONS) -> bytes:
    head = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": 1000 * batch,
        "conf": {"spark.sql.shuffle.partitions": str(partitions)},
    }
    return f'v1\n{json.dumps(head)}\n{{"logOffset":{batch}}}'.encode()


def commit(batch: int, *, ids: bool = False) -> bytes:
    if not ids:
        return b'v1\n{"nextBatchWatermarkMs":0}'
    own = {"0": [[ID.format(batch * PARTITIONS + p)] for p in range(PARTITIONS)]}
    return f"v2\n{json.dumps({'nextBatchWatermarkMs': 0, 'stateUniqueIds': own})}".encode()


def entry(name: str, batch: int) -> str:
    return json.dumps({"path": f"file:///in/{name}", "timestamp": 1, "batchId": batch})


def rocks(*parts: str) -> bytes:
    found = io.BytesIO()
    files = [{"localFileName": "1.sst", "dfsSstFileName": part, "sizeBytes": 1} for part in parts]
    with zipfile.ZipFile(found, "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps({'sstFiles': files, 'numKeys': 1})}")
    return found.getvalue()


def checkpoint(batches: int, how: str = "hdfs", *, every: int = 4) -> dict[str, bytes]:
    """As Spark leaves it after so many batches, with a whole version of the state now and then."""
    made = {"metadata": b'{"id":"6c0e6b0a-0000-4000-8000-000000000000"}'}
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
    }
    made["state/0/_metadata/metadata"] = f"v1\n{json.dumps(operator)}".encode()
    change, whole = ("delta", "snapshot") if how == "hdfs" else ("changelog", "zip")
    for n in range(batches):
        made[f"offsets/{n}"] = plan(n)
        made[f"commits/{n}"] = commit(n, ids=how == "changelog-2")
        made[f"sources/0/{n}"] = f"v1\n{entry(str(n), n)}".encode()
        if n and n % 5 == 4:
            body = "\n".join(entry(str(old), old) for old in range(n + 1))
            made[f"sources/0/{n}.compact"] = f"v1\n{body}".encode()
            del made[f"sources/0/{n}"]
        for p in range(PARTITIONS):
            id_ = f"_{ID.format(n * PARTITIONS + p)}" if how == "changelog-2" else ""
            made[f"state/0/{p}/{n + 1}{id_}.{change}"] = b"change"
            if (n + 1) % every == 0:
                made[f"state/0/{p}/{n + 1}{id_}.{whole}"] = rocks() if whole == "zip" else b"all"
    return made


def picture_of(files: dict[str, bytes]) -> Picture:
    infos = {path: FileInfo(len(data), at) for at, (path, data) in enumerate(files.items())}
    return Picture("/q", infos, files.__getitem__)


def without(files: dict[str, bytes], lost: str) -> Picture:
    return picture_of({path: data for path, data in files.items() if path != lost})


FORMATS = st.sampled_from(["hdfs", "changelog", "changelog-2"])


# Names and contents.


def test_names_mean_what_spark_means_by_them() -> None:
    assert parse_log("12") == LogFile(12, False)
    assert parse_log("12.compact") == LogFile(12, True)
    assert parse_log(".12.crc") is None
    assert parse_log("x") is None
    plain_name = "state/0/3/7.delta"
    assert parse_state(plain_name) == StateFile(Store(0, 3, ""), 7, "", "delta", plain_name)
    named = f"state/1/0/left-keyToNumValues/7_{ID.format(1)}.changelog"
    store = Store(1, 0, "left-keyToNumValues")
    assert parse_state(named) == StateFile(store, 7, ID.format(1), "changelog", named)
    for other in (
        "state/0/_metadata/metadata",
        "state/0/0/SSTs/1-a.sst",
        "offsets/3",
        "state/x/0/1.zip",
    ):
        assert parse_state(other) is None


@given(st.text(max_size=200))
def test_no_name_and_no_content_makes_a_parser_fail_otherwise_than_it_says(text: str) -> None:
    parse_state(text)
    parse_log(text)
    for parse in (logs.parse_offsets, logs.parse_commit, logs.parse_entries, logs.parse_operator):
        for data in (text.encode(), f"v1\n{text}".encode()):
            with suppress(UnknownFormat):
                parse(data, "x")


def test_what_is_newer_than_what_is_known_is_refused() -> None:
    with pytest.raises(UnknownFormat, match="v9"):
        logs.parse_offsets(b"v9\n{}", "offsets/3")
    assert "v9" in rollback_rules.why_not(picture_of(checkpoint(3) | {"offsets/1": b"v9\n{}"}), 1)


def test_sources_that_are_no_files_have_offsets_of_their_own() -> None:
    found = logs.parse_offsets(b'v1\n{}\n{"topic":{"0":5}}\n-\n17\nnot json', "x")
    assert found.sources == ({"topic": {"0": 5}}, None, 17, "not json")
    assert [logs.log_offset(one) for one in found.sources] == [None] * 4


# Rules.


@given(FORMATS, st.integers(1, 14), st.data())
def test_after_a_return_a_checkpoint_is_as_it_was_then(
    how: str, batches: int, data: st.DataObject
) -> None:
    back = data.draw(st.integers(0, batches - 1))
    files = checkpoint(batches, how)
    picture = picture_of(files)
    assert rollback_rules.why_not(picture, back, thorough=True) == ""
    left = files.keys() - set(rollback_rules.gone_after(picture, back))
    assert left == checkpoint(back + 1, how).keys()


@given(FORMATS, st.integers(2, 14), st.data())
def test_a_batch_that_lacks_something_cannot_be_returned_to_and_others_can(
    how: str, batches: int, data: st.DataObject
) -> None:
    """A lost file of the state spoils all batches up to the next whole version of it."""
    files = checkpoint(batches, how)
    lost = data.draw(st.sampled_from(sorted(p for p in files if parse_state(p))))
    gone = parse_state(lost)
    assert gone is not None
    picture = picture_of({path: body for path, body in files.items() if path != lost})
    for batch in range(batches):
        chain = rollback_rules.base_versions(picture_of(files), batch)[gone.store]
        whole_beside = any(
            other.version == gone.version and other.kind in ("snapshot", "zip")
            for other in picture.state_files()
            if other.store == gone.store
        )
        spoiled = lost in chain and not (gone.kind in ("delta", "changelog") and whole_beside)
        if gone.kind in ("snapshot", "zip"):  # then the changes before it will do
            spoiled = False
        assert bool(rollback_rules.why_not(picture, batch)) == spoiled, (lost, batch)


def test_why_not_says_what_is_missing() -> None:
    files = checkpoint(9)
    assert "commits has 0 to 8" in rollback_rules.why_not(picture_of(files), 20)
    begun = picture_of(files | {"offsets/9": plan(9)})
    assert "was not committed" in rollback_rules.why_not(begun, 9)
    assert "file source 0" in rollback_rules.why_not(without(files, "sources/0/6"), 7)
    assert rollback_rules.why_not(without(files, "sources/0/3"), 7) == ""
    assert "offsets/5" in rollback_rules.why_not(without(files, "offsets/5"), 5)


def test_no_number_in_a_plan_makes_a_judgement_long() -> None:
    """A damaged plan may name any: what is told is the first that is not there."""
    files = checkpoint(9)
    files["offsets/7"] = b'v1\n{}\n{"logOffset":9000000000000000000}'
    lost = rollback_rules.why_not(picture_of(files), 7)
    assert "entries 9, 10, 11 and 8999999999999999989 more" in lost
    files["offsets/7"] = plan(7, partitions=999_999_999_999_999_999)
    assert "operator 0, partition 2" in rollback_rules.why_not(picture_of(files), 7)
    for number in ("9" * 5000, "-1", "true"):
        head = json.dumps({"conf": {"spark.sql.shuffle.partitions": number}})
        files["offsets/7"] = f'v1\n{head}\n{{"logOffset":{number}}}'.encode()
        assert rollback_rules.why_not(picture_of(files), 7) == ""


def test_a_listing_may_come_in_parts_and_strange_names_mean_nothing() -> None:
    files = checkpoint(9, "changelog-2") | {
        "x/y/_metadata/v2/0": b"",
        "state/x/_metadata/v2/0": b"",
        "state/0/_metadata/v2/x": b"",
        "sources/x/0": b"",
        f"offsets/{'9' * 400}": b"",
        "offsets/.8.crc": b"",
    }
    whole, parts = picture_of(files), picture_of({})
    for path, info in whole.files.items():
        parts.add({path: info})
    parts.read = whole.read
    assert list(facts.batches(parts)) == list(facts.batches(whole))
    assert [batch.why_not for batch in facts.batches(whole)] == [""] * 9
    assert [batch.files for batch in facts.batches(whole)] == [2, 2, 2, 4, 2, 2, 2, 4, 2]


def test_a_long_offset_is_cut() -> None:
    assert facts.offset_text({"a": 1}, 60) == '{"a":1}'
    assert facts.offset_text("x" * 100, 10) == '"xxxxxxxx…'


def test_a_batch_without_a_commit_among_others_says_so() -> None:
    lost = without(checkpoint(9), "commits/5")
    assert rollback_rules.why_not(lost, 5) == (
        "batch 5 has no commit of its own: commits/5 is not there"
    )


def test_a_part_of_a_rocksdb_version_is_missed_by_a_thorough_look() -> None:
    files = checkpoint(8, "changelog") | {"state/0/1/8.zip": rocks("000008-x.sst")}
    assert rollback_rules.why_not(picture_of(files), 7) == ""
    assert "SSTs/000008-x.sst is gone" in rollback_rules.why_not(
        picture_of(files), 7, thorough=True
    )
    whole = files | {"state/0/1/SSTs/000008-x.sst": b"x"}
    assert rollback_rules.why_not(picture_of(whole), 7, thorough=True) == ""


def test_a_version_of_another_id_does_not_count() -> None:
    """A task that was tried twice leaves a file of an id that no commit names."""
    files = checkpoint(3, "changelog-2")
    lost = f"state/0/1/3_{ID.format(2 * PARTITIONS + 1)}.changelog"
    other = f"state/0/1/3_{ID.format(999)}.changelog"
    swapped = {path: body for path, body in files.items() if path != lost} | {other: b"x"}
    assert "not complete" in rollback_rules.why_not(picture_of(swapped), 2)
    assert rollback_rules.why_not(picture_of(swapped), 1) == ""


def test_a_sink_loses_what_is_newer_unless_its_log_is_broken() -> None:
    log = [f"_spark_metadata/{n}" for n in range(4)] + ["_spark_metadata/4.compact", "part-1"]
    assert rollback_rules.sink_gone_after(log, 2) == [
        "_spark_metadata/3",
        "_spark_metadata/4.compact",
    ]
    assert rollback_rules.why_not_sink(log, 2) == ""
    assert "entries 1" in rollback_rules.why_not_sink(
        [one for one in log if one != "_spark_metadata/1"], 3
    )


# Traces.


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)), max_size=20))
def test_a_trace_reaches_all_that_read_and_goes_back_far_enough(
    reads: list[tuple[int, int, int]],
) -> None:
    """`reads` says which query read, in which batch, what another wrote in the batch of the same
    number. Nobody that must go back is left who read what goes."""
    wrote = {q: {n: frozenset({f"/{q}/{n}"}) for n in range(4)} for q in range(5)}
    read: dict[int, dict[int, frozenset[str]]] = {q: {} for q in range(5)}
    for reader, batch, writer in reads:
        if reader != writer:
            known = read[reader].get(batch, frozenset())
            read[reader][batch] = known | {f"/{writer}/{batch}"}
    flows = [Flow(f"/q{q}", (), wrote[q], read[q]) for q in range(5)]
    found = {one.path: one.batch for one in reach(flows, "/q0", 1)}
    assert found["/q0"] <= 1
    bad = {f"/{q}/{n}" for q in range(5) for n in range(4) if n >= found.get(f"/q{q}", 9)}
    for q in range(5):
        hit = [n for n, files in read[q].items() if files & bad]
        if q or found["/q0"] < 1:
            assert not hit or found[f"/q{q}"] <= min(hit)


def test_paths_of_both_logs_are_compared_without_cluster_and_quoting() -> None:
    assert plain("diskless://c/out/a%20b") == plain("diskless:///out/a b") == "/out/a b"


def test_a_trace_tells_how_far_a_source_without_a_list_of_files_was_read() -> None:
    """As Kafka's: its offsets are all that the checkpoint knows of it."""
    files = checkpoint(4)
    for n in range(1, 4):
        files[f"offsets/{n}"] = plan(n) + f'\n{{"topic":{{"0":{10 * n}}}}}'.encode()
    files["sources/1/0"] = b'v1\n{"topic":{"0":0}}'
    kafka = picture_of(files)
    (line,) = other_sources(kafka, 2)
    assert 'batch 2 read it from {"topic":{"0":10}} to {"topic":{"0":20}}' in line
    assert "/q: source 1 " in line
    assert "where batch 0 ended, which is not known any more" in next(other_sources(kafka, 1))
    (line,) = other_sources(kafka, None)
    assert "does not say" in line
    assert list(other_sources(picture_of(checkpoint(4)), 2)) == []
    files["offsets/3"] = b"v9\nof another Spark"
    assert len(list(other_sources(picture_of(files), None))) == 1


# On a cluster.


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture
def client(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a cluster, the default one meanwhile, with a query of nine batches."""
    monkeypatch.setenv("DISKLESS_CLUSTER", shared.settings.name)
    with shared.connect() as client:
        client._caller.application = ""
        put(client, "/ck/q", checkpoint(9))
        yield client
        client.delete("/", recursive=True, with_snapshots=True)


def put(client: Client, top: str, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        client.write(f"{top}/{path}", data)


def below(client: Client, top: str) -> set[str]:
    return set(access.files_below(client, top))


def test_queries_are_listed_and_shown(cli: Cli, client: Client) -> None:  # noqa: F811
    (found,) = json.loads(cli("query", "ls", "/ck", "--json").text)
    assert (found["path"], found["last_batch"]) == ("/ck/q", 8)
    assert found["operators"] == ["stateStoreSave"]
    assert cli("query", "ls", "/ck").text.strip().endswith("/ck/q")
    shown = json.loads(cli("query", "show", "/ck/q", "--json").text)
    assert [batch["number"] for batch in shown["batches"]] == list(range(9))
    assert "logOffset" in cli("query", "show", "/ck/q").text
    assert cli("query", "show", "/ck").status == exits.NO_RETURN
    assert cli("query", "show", "/none").status == exits.NOT_FOUND


def test_a_search_that_was_given_up_says_so(
    cli: Cli,  # noqa: F811
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cli("query", "ls", "--json").err == ""
    for number in range(4):
        client.write(f"/many/{number}", b"")
    monkeypatch.setattr(access, "SEARCH_ENTRIES_MAX", 3)
    told = cli("query", "ls", "/many", "--json")
    assert (told.status, told.json) == (exits.OK, [])
    assert "queries may be missing" in told.err
    with pytest.warns(UserWarning, match="more than 3 names"):
        assert not list(queries.ls(client, "/many"))


@pytest.mark.parametrize("verb", ["rollback", "clone", "cut", "repartition"])
def test_every_verb_that_changes_something_can_be_tried_without(verb: str) -> None:
    options = {name for option in query_verbs.command.commands[verb].params for name in option.opts}
    assert "--dry-run" in options


def test_a_rollback_is_one_step_and_can_be_undone(cli: Cli, client: Client) -> None:  # noqa: F811
    before = below(client, "/ck/q")
    dry = cli("query", "rollback", "/ck/q", "--batch", "3", "--dry-run")
    assert "would go back to batch 3" in dry.text
    assert below(client, "/ck/q") == before
    assert not list(client.snapshots("/ck/q"))
    done = cli("query", "rollback", "/ck/q", "--batch", "3")
    assert "skips them" in done.text
    assert below(client, "/ck/q") == checkpoint(4).keys()
    assert [status.path for status in client.list("/ck")] == ["/ck/q"]
    _, _, undo = done.text.partition("to undo it: diskless ")
    assert cli(*undo.split()).status == exits.OK
    assert below(client, "/ck/q") == before


def test_a_rollback_that_cannot_be_changes_nothing(cli: Cli, client: Client) -> None:  # noqa: F811
    client.delete("/ck/q/state/0/1/6.delta")
    before = below(client, "/ck/q")
    for batch, words in (("40", "not known"), ("6", "not complete")):
        failed = cli("query", "rollback", "/ck/q", "--batch", batch)
        assert failed.status == exits.NO_RETURN
        assert words in failed.err
    assert below(client, "/ck/q") == before
    assert not list(client.snapshots("/ck/q"))
    assert [status.path for status in client.list("/ck")] == ["/ck/q"]


def test_a_query_that_is_written_to_is_left_alone_unless_forced(
    shared: LocalCluster,
    cli: Cli,  # noqa: F811
    client: Client,
) -> None:
    put(client, "/busy", checkpoint(9))
    with shared.connect() as writer:
        writer.write("/busy/offsets/9", plan(9))
        (lease,) = client.leases("/busy")
        assert lease.application == writer._caller.application
        with pytest.raises(CheckpointInUse, match=r"/busy is in use by"):
            queries.rollback(client, {"/busy": 3})
        with shared.connect() as other, pytest.raises(CheckpointInUse):
            other.write("/busy/commits/9", commit(9))
        assert cli("query", "rollback", "/busy", "--batch", "3").status == exits.IN_USE
        assert cli("query", "rollback", "/busy", "--batch", "3", "--force").status == exits.OK
    assert below(client, "/busy") == checkpoint(4).keys()


def test_several_queries_go_back_in_one_step(cli: Cli, client: Client) -> None:  # noqa: F811
    put(client, "/ck/r", checkpoint(6, "changelog"))
    done = cli("query", "rollback", "/ck/q", "--batch", "3", "--with", "/ck/r=2")
    assert (below(client, "/ck/q"), below(client, "/ck/r")) == (
        checkpoint(4).keys(), checkpoint(3, "changelog").keys(),
    )  # fmt: skip
    assert "diskless rollback --cut before-batch-3" in done.text
    assert cli("rollback", "--cut", "before-batch-3").status == exits.OK
    assert below(client, "/ck/r") == checkpoint(6, "changelog").keys()


def test_a_clone_is_a_query_of_its_own(cli: Cli, client: Client) -> None:  # noqa: F811
    assert cli("query", "clone", "/ck/q", "/new/canary", "--batch", "3", "--dry-run").status == 0
    assert not client.exists("/new")
    assert cli("query", "clone", "/ck/q", "/new/canary", "--batch", "3").status == exits.OK
    assert below(client, "/new/canary") == checkpoint(4).keys()
    assert client.read("/new/canary/metadata") != client.read("/ck/q/metadata")
    assert below(client, "/ck/q") == checkpoint(9).keys()
    assert not list(client.snapshots())
    with pytest.raises(AlreadyExists):
        queries.clone(client, "/ck/q", "/new/canary")
    with pytest.raises(CannotReturn):
        queries.clone(client, "/ck/q", "/new/other", batch=30)
    assert [status.path for status in client.list("/new")] == ["/new/canary"]


def test_a_cut_keeps_queries_and_brings_them_back(cli: Cli, client: Client) -> None:  # noqa: F811
    put(client, "/ck/r", checkpoint(3))
    client.write("/out/a", b"1")
    made = cli("query", "cut", "night", "/ck/q", "/ck/r", "/out")
    assert "/ck/q is kept at batch 8" in made.text
    client.write("/ck/r/commits/3", commit(3))
    client.write("/out/b", b"2")
    assert "would go back" in cli("query", "cut", "--back", "night", "--dry-run").text
    assert client.exists("/out/b")
    assert cli("query", "cut", "--back", "night").status == exits.OK
    assert not client.exists("/out/b")
    assert queries.show(client, "/ck/r").query.last_batch == 2
    with pytest.raises(NotFound):
        queries.cut_back(client, "never")


def test_a_trace_ends_with_the_command_that_brings_all_back(cli: Cli, client: Client) -> None:  # noqa: F811
    """/t/q writes to /t/out, a file in each batch, and /t/r reads them."""
    put(client, "/t/q", checkpoint(4))
    put(client, "/t/r", checkpoint(4))
    for n in range(4):
        row = json.dumps({"path": f"diskless:///t/out/f{n}", "batchId": n})
        client.write(f"/t/out/f{n}", b"rows")
        client.write(f"/t/out/_spark_metadata/{n}", f"v1\n{row}".encode())
        client.write(f"/t/r/sources/0/{n}", f"v1\n{row}".encode(), overwrite=True)
    asked = ["query", "trace", "/t/q", "--batch", "2", "--sink", "/t/out=/t/q"]
    found = cli(*asked, "--json").json
    assert {one["path"]: one["back_to"] for one in found["touched"]} == {"/t/q": 1, "/t/r": 1}
    assert found["touched"][0]["files"] == ["/t/out/f2", "/t/out/f3"]
    told = cli(*asked)
    assert "/t/r, which read what /t/q wrote, is bad from batch 2 on: back to batch 1" in told.text
    assert "not known: /t/r writes to no file sink" in told.text
    _, _, command = told.text.partition("to bring all of it back: diskless ")
    assert cli(*command.split()).status == exits.OK
    assert below(client, "/t/q") == below(client, "/t/r") == checkpoint(2).keys()
    assert below(client, "/t/out") == {"f0", "f1", "_spark_metadata/0", "_spark_metadata/1"}
    assert cli("query", "trace", "/t/q", "--batch", "9").status == exits.NO_RETURN
    assert cli("query", "trace", "/t/q", "--batch", "1", "--sink", "/t/out").status == exits.USAGE


def test_a_repartitioning_says_what_it_needs_before_spark_is_started(
    cli: Cli,  # noqa: F811
    client: Client,
    shared: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(client, "/ck/r", checkpoint(6, "changelog"))
    before = below(client, "/ck/r")
    asked = ["query", "repartition", "--dry-run", "-n"]
    assert "can have 4 partitions" in cli(*asked, "4", "/ck/r").text
    assert cli(*asked, "4", "/ck/r", "--json").json["after"] == 4
    for path, n, words in (("/ck/q", "4", "RocksDB"), ("/ck/r", "2", "2 partitions already")):
        refused = cli(*asked, n, path)
        assert refused.status == exits.NO_RETURN
        assert words in refused.err
    with shared.connect() as writer:
        writer.write("/ck/r/offsets/6", plan(6))
        assert cli(*asked, "4", "/ck/r").status == exits.IN_USE
        assert cli(*asked, "4", "/ck/r", "--force").status == exits.OK
        client.delete("/ck/r/offsets/6")
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    old = cli(*asked, "4", "/ck/r", "--force")
    assert old.status == exits.SPARK_UNUSABLE
    assert "needs Spark 4.2 or newer: here is 4.1.3" in old.err
    assert below(client, "/ck/r") == before
    assert not list(client.snapshots())
