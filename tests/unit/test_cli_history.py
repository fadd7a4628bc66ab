"""The verbs of the past, from the command line to a live cluster and back."""

import json
from collections.abc import Iterator

import pytest

import diskless
from diskless.cli import exits
from diskless.client import Client
from diskless.launch.local import LocalCluster
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with diskless.local_cluster(agents=3, data_shards=1, parity_shards=1) as cluster:
        yield cluster


@pytest.fixture
def client(shared: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a cluster, the default one meanwhile, with a directory and nothing else."""
    monkeypatch.setenv("DISKLESS_CLUSTER", shared.settings.name)
    with shared.connect() as client:
        client.write("/q/a", b"old")
        yield client
        client.delete("/", recursive=True, with_snapshots=True)


def test_a_snapshot_is_made_listed_compared_and_deleted(cli: Cli, client: Client) -> None:  # noqa: F811
    assert cli("snapshot", "create", "/q", "s").text == "/q/.snapshot/s\n"
    client.write("/q/b", b"12345")
    client.write("/q/a", b"newer", overwrite=True)
    assert cli("cat", "/q/.snapshot/s/a").out == b"old"
    assert cli("ls", "/q").text == "/q/a\n/q/b\n"
    assert cli("ls", "/q/.snapshot").text == "/q/.snapshot/s/\n"
    lines = cli("snapshot", "diff", "/q", "s").text.splitlines()
    assert [line.split() for line in lines] == [["M", "5", "B", "a"], ["+", "5", "B", "b"]]
    listed = cli("snapshot", "ls", "/q").text
    assert "/q/.snapshot/s" in listed
    assert "1 files" in listed
    assert cli("snapshot", "ls").text == listed
    assert cli("snapshot", "rename", "/q", "s", "t").status == exits.OK
    assert cli("snapshot", "rm", "/q", "t").status == exits.OK
    assert cli("snapshot", "ls").text == ""


def test_without_a_name_the_snapshot_gets_one(cli: Cli, client: Client) -> None:  # noqa: F811
    made = json.loads(cli("snapshot", "create", "/q", "--json").text)
    assert made == {"paths": ["/q"], "name": made["name"], "cut": False}
    (listed,) = json.loads(cli("snapshot", "ls", "--json").text)
    assert (listed["path"], listed["name"], listed["bytes"]) == ("/q", made["name"], 3)


def test_a_rollback_says_how_to_undo_it(cli: Cli, client: Client) -> None:  # noqa: F811
    client.snapshot("/q", "s")
    client.write("/q/a", b"new", overwrite=True)
    outcome = cli("rollback", "/q", "s")
    assert client.read("/q/a") == b"old"
    _, _, undo = outcome.text.partition("to undo it: diskless ")
    assert cli(*undo.split()).status == exits.OK
    assert client.read("/q/a") == b"new"


def test_a_checkpoint_that_a_query_writes_to_goes_back_only_by_force(
    cli: Cli,  # noqa: F811
    client: Client,
) -> None:
    client.write("/live/metadata", b"{}")
    client.snapshot("/live", "s")
    client.snapshot_cut(["/live"], "all")
    client.write("/live/offsets/0", b"new")  # takes the lease
    for verb in (("rollback", "/live", "s"), ("rollback", "--cut", "all")):
        refused = cli(*verb)
        assert refused.status == exits.IN_USE
        assert "is in use by" in refused.err
        assert client.exists("/live/offsets/0")
    assert cli("rollback", "/live", "s", "--force").status == exits.OK
    assert not client.exists("/live/offsets/0")
    assert cli("rollback", "--cut", "all", "--force").status == exits.OK


def test_a_cut_goes_back_together(cli: Cli, client: Client) -> None:  # noqa: F811
    client.write("/r/a", b"old")
    assert cli("snapshot", "create", "--cut", "/q", "/r", "both").status == exits.OK
    for top in ("/q", "/r"):
        client.write(f"{top}/a", b"new", overwrite=True)
    outcome = cli("rollback", "--cut", "both")
    assert client.read("/q/a") == client.read("/r/a") == b"old"
    assert "diskless rollback --cut before-both" in outcome.text


def test_a_clone_shares_and_du_tells(cli: Cli, client: Client) -> None:  # noqa: F811
    assert cli("clone", "/q", "/c").status == exits.OK
    client.write("/c/more", b"12")
    (counted,) = json.loads(cli("du", "--shared", "--json", "/c").text)
    assert (counted["bytes"], counted["own_bytes"], counted["shared_bytes"]) == (5, 2, 3)
    assert "2 B own" in cli("du", "--shared", "/c").text


BAD = {
    "of a file": (["snapshot", "create", "/q/a", "x"], exits.WRONG_KIND),
    "of nothing": (["snapshot", "create", "/no"], exits.NOT_FOUND),
    "a name that exists": (["snapshot", "create", "/q", "s"], exits.EXISTS),
    "not a name": (["snapshot", "create", "/q", "a/b"], exits.USAGE),
    "two names": (["snapshot", "create", "/q", "a", "b"], exits.USAGE),
    "a cut without a name": (["snapshot", "create", "--cut", "/q"], exits.USAGE),
    "ls of nothing": (["snapshot", "ls", "/no"], exits.NOT_FOUND),
    "rm of what is not there": (["snapshot", "rm", "/q", "no"], exits.NOT_FOUND),
    "diff of what is not there": (["snapshot", "diff", "/q", "no"], exits.NOT_FOUND),
    "a write below": (["mkdir", "/q/.snapshot/s/d"], exits.READ_ONLY),
    "clone onto something": (["clone", "/q", "/other"], exits.EXISTS),
    "clone into itself": (["clone", "/q", "/q/x"], exits.USAGE),
    "rename of what has snapshots": (["mv", "/q", "/x"], exits.HAS_SNAPSHOTS),
    "delete of what has snapshots": (["rm", "-r", "/q"], exits.HAS_SNAPSHOTS),
    "rollback to nothing": (["rollback", "/q", "no"], exits.NOT_FOUND),
    "rollback of no snapshot": (["rollback", "/q"], exits.USAGE),
    "rollback of a path and a cut": (["rollback", "/q", "--cut", "s"], exits.USAGE),
    "rollback of a cut that is none": (["rollback", "--cut", "no"], exits.NOT_FOUND),
}


@pytest.mark.parametrize(("command", "status"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_an_exit_status(
    cli: Cli,  # noqa: F811
    client: Client,
    command: list[str],
    status: int,
) -> None:
    client.snapshot("/q", "s")
    client.mkdirs("/other")
    outcome = cli(*command)
    assert outcome.status == status, outcome.err
    assert outcome.err.startswith("diskless: ")
    assert outcome.err.count("\n") == 1
    assert outcome.out == b""


def test_rm_takes_snapshots_along_if_it_is_told_to(cli: Cli, client: Client) -> None:  # noqa: F811
    client.snapshot("/q", "s")
    assert "--with-snapshots" in cli("rm", "-r", "/q").err
    assert cli("rm", "-r", "--with-snapshots", "/q").status == exits.OK
    assert not client.exists("/q")
    assert list(client.snapshots()) == []


def test_status_and_log_tell_of_snapshots(cli: Cli, client: Client) -> None:  # noqa: F811
    assert "snapshots:" not in cli("status").text
    client.snapshot("/q", "nightly")
    assert "snapshots: 1" in cli("status").text
    assert json.loads(cli("status", "--json").text)["snapshots"] == 1
    assert "nightly" in cli("log", "-n", "5").text
