"""`diskless token`, and `diskless log` by principal, path and time, against a live cluster."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import diskless
from diskless.cli import exits
from diskless.cli.status import refusal_lines
from diskless.cli.times import parse_duration_s, parse_expiry, parse_since_ms
from diskless.client import Client, descriptor
from diskless.errors import BadRequest, Forbidden, Unauthorized
from diskless.identity.claims import parse_token
from diskless.launch.local import LocalCluster
from diskless.model import ClusterStatus
from tests.support import eventually, on_loop
from tests.unit.test_cli import Cli, cli  # noqa: F401 - a fixture

DAY_S = 86_400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with diskless.local_cluster(
        agents=3, data_shards=1, parity_shards=1, audit_dir=str(tmp_path_factory.mktemp("audit"))
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of the cluster, which is the default one meanwhile."""
    monkeypatch.setenv("DISKLESS_CLUSTER", cluster.settings.name)
    with cluster.connect() as client:
        yield client


def test_a_token_is_printed_alone_and_registered_without_its_key(
    cli: Cli,  # noqa: F811
    cluster: LocalCluster,
    client: Client,
) -> None:
    began_s = int(time.time())
    made = cli(
        "token", "create", "--path", "/a", "--path", "/b/c/", "--rights", "rw", "--name", "q1"
    )
    assert made.status == exits.OK
    assert made.err == ""
    (line,) = made.text.splitlines()
    credential = parse_token(line)
    claims = credential.claims
    keyring = descriptor.load(cluster.settings.name).keyring
    assert credential == keyring.credential(claims), "any agent makes its key again"
    assert (claims.name, claims.paths, claims.writes) == ("q1", ("/a", "/b/c"), True)
    assert 30 * DAY_S <= claims.expires_s - began_s <= 30 * DAY_S + 60
    (known,) = [token for token in client.tokens() if token.name == "q1"]
    assert (known.paths, known.rights, known.expires_s) == (["/a", "/b/c"], "rw", claims.expires_s)
    assert known.state(began_s) == "valid"
    assert known.state(claims.expires_s) == "expired"
    for node in cluster.nodes.values():
        tokens = on_loop(cluster, lambda node=node: str(node.replica.state.tokens.by_name))
        assert credential.key.hex() not in tokens
        assert line.rpartition(".")[2] not in tokens


def test_a_token_without_a_name_gets_one_that_tells_its_path(
    cli: Cli,  # noqa: F811
    client: Client,
) -> None:
    made = cli(
        "token",
        "create",
        "--path",
        "/checkpoints/q-9",
        "--rights",
        "r",
        "--expires",
        "never",
        "--json",
    ).json
    assert re.fullmatch("q9-[0-9a-f]{6}", made["name"])
    assert (made["paths"], made["rights"], made["expires_s"]) == (["/checkpoints/q-9"], "r", 0)
    assert parse_token(made["token"]).claims.name == made["name"]
    assert parse_token(made["token"]).claims.writes is False


def test_tokens_are_listed_and_revoked(cli: Cli, cluster: LocalCluster, client: Client) -> None:  # noqa: F811
    cli("token", "create", "--path", "/x", "--rights", "r", "--name", "here", "--expires", "never")
    revoked = cli("token", "revoke", "here", "nobody")
    assert revoked.status == exits.OK
    assert revoked.text == "here revoked\nnobody revoked\n"
    assert revoked.err == (
        "diskless: no token nobody was registered; its name is revoked for good\n"
    )
    assert cli("token", "revoke", "here").text == "here was revoked before\n"
    assert cli("token", "revoke", "here", "--json").json == [
        {"name": "here", "revoked": False, "registered": True}
    ]
    lines = {line.split()[0]: line.split()[1:] for line in cli("token", "ls").text.splitlines()}
    assert lines["here"] == ["revoked", "r", "never", "/x"]
    assert lines["nobody"] == ["revoked", "-", "never", "-"]
    shown = {token["name"]: token for token in cli("token", "ls", "--json").json}
    assert shown["here"]["state"] == "revoked"
    assert "token" not in shown["here"]
    nodes = cluster.nodes.values()
    eventually(lambda: all("here" in node.revoked and "nobody" in node.revoked for node in nodes))
    again = cli("token", "create", "--path", "/x", "--rights", "r", "--name", "here")
    assert again.status == exits.EXISTS
    assert again.err == "diskless: the token 'here' was revoked: choose another name\n"


def test_a_name_is_one_tokens(cli: Cli, client: Client) -> None:  # noqa: F811
    one = ["token", "create", "--rights", "r", "--name", "taken", "--expires", "never", "--path"]
    assert cli(*one, "/x").text == cli(*one, "/x").text, "the same token may be made again"
    other = cli(*one, "/y")
    assert other.status == exits.EXISTS
    assert "taken" in other.err
    assert other.text == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "--rights", "r"], "--path"),
        (["create", "--path", "/a"], "--rights"),
        (["create", "--path", "a", "--rights", "r"], "absolute"),
        (["create", "--path", "/a/../b", "--rights", "r"], ".."),
        (["create", "--path", "/a", "--rights", "w"], "'w'"),
        (["create", "--path", "/a", "--rights", "r", "--expires", "soon"], "30d"),
        (["create", "--path", "/a", "--rights", "r", "--expires", "0d"], "30d"),
        (["create", "--path", "/a", "--rights", "r", "--name", "a b"], "no name"),
        (["revoke"], "NAME"),
        (["revoke", "a/b"], "not the name"),
    ],
)
def test_a_mistake_costs_one_line(
    cli: Cli,  # noqa: F811
    client: Client,
    arguments: list[str],
    said: str,
) -> None:
    outcome = cli("token", *arguments)
    assert outcome.status == exits.USAGE
    assert len(outcome.err.splitlines()) == 1
    assert said in outcome.err
    assert outcome.text == ""


def test_without_the_key_no_token_is_made(
    cli: Cli,  # noqa: F811
    cluster: LocalCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    known = descriptor.load(cluster.settings.name)
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    token = known.keyring.client("q1").token
    descriptor.save(
        descriptor.Descriptor(
            cluster=known.cluster, name=known.name, token=token, gateways=known.gateways
        )
    )
    outcome = cli("token", "create", "--path", "/a", "--rights", "r")
    assert outcome.status == exits.UNAUTHORIZED
    assert len(outcome.err.splitlines()) == 1
    assert "a token is not enough" in outcome.err
    assert token not in outcome.err


# The log.


def test_the_log_is_read_by_who_path_and_time(cli: Cli, client: Client) -> None:  # noqa: F811
    client.write("/log/q1/a", b"1")
    client.write("/log/q2/a", b"1")
    client.rename("/log/q1/a", "/log/q2/b")

    def said(*options: str) -> list[str]:
        return [event["text"] for event in cli("log", "--json", *options).json]

    puts = ["put /log/q1/a 1 B", "put /log/q2/a 1 B", "rename /log/q1/a to /log/q2/b"]
    assert said("--path", "/log") == puts
    assert said("--path", "/log/q1") == [puts[0], puts[2]]
    assert said("--path", "/log", "--limit", "2") == puts[1:]
    assert said("--path", "/log", "--who", "nobody") == []
    assert said("--path", "/log", "--who", "admin") == puts
    assert said("--path", "/log", "--since", "1h") == puts
    assert said("--path", "/log", "--since", "2999-01-01") == []
    line = cli("log", "--path", "/log/q1", "-n", "1").text
    assert re.fullmatch(r" *\d+  [-\d]{10} [:\d]{8}  admin +rename .*\n", line)
    wrong = cli("log", "--since", "yesterday")
    assert wrong.status == exits.USAGE
    assert "2h" in wrong.err


def test_durations_and_times_are_read_as_they_are_typed() -> None:
    assert [parse_duration_s(text) for text in ("45s", "90m", "12h", "30d", "2w", " 1d ")] == [
        45, 5400, 43_200, 30 * DAY_S, 14 * DAY_S, DAY_S,
    ]  # fmt: skip
    assert [parse_duration_s(text) for text in ("", "d", "1", "-1d", "1.5d", "1y")] == [None] * 6
    assert parse_expiry("never", now_s=5.5) == 0
    assert parse_expiry("1d", now_s=5.5) == 5 + DAY_S
    assert parse_since_ms("10s", now_s=25.0) == 15_000
    assert parse_since_ms("10d", now_s=25.0) == 0
    assert parse_since_ms("1970-01-02T00:00:00+00:00", now_s=0) == 1000 * DAY_S
    for text in ("", "soon", "2026-13-01", "99999-01-01"):
        with pytest.raises(BadRequest):
            parse_since_ms(text, now_s=0)


# Refusals in status.


def test_status_tells_of_refusals_and_of_an_audit_with_holes() -> None:
    status = ClusterStatus(parity_shards=1, margin=1, margin_hosts=1, agents=[])
    assert refusal_lines(status) == []
    status = ClusterStatus(
        parity_shards=1, margin=1, margin_hosts=1, agents=[],
        refused={"Forbidden": 2, "Unauthorized": 17}, audit_dropped=5,
    )  # fmt: skip
    assert refusal_lines(status) == [
        "refused: 17 Unauthorized, 2 Forbidden, since the agents started",
        "audit: 5 lines could not be written: look at the agents' logs, and at their disks",
    ]


def test_status_shows_refusals_of_a_live_cluster(
    cli: Cli,  # noqa: F811
    cluster: LocalCluster,
    client: Client,
) -> None:
    for error in (Unauthorized("wrong"), Forbidden("no")):
        on_loop(cluster, lambda error=error: cluster.nodes[2].refusals.note("gateway", error, "x"))
    eventually(lambda: "refused: 1 Forbidden, 1 Unauthorized" in cli("status").text)
    assert cli("status", "--json").json["refused"] == {"Unauthorized": 1, "Forbidden": 1}
