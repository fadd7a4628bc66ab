"""What Spark is told: enough to reach a cluster, and never more than a client's token."""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diskless.client import Client, descriptor
from diskless.client.descriptor import Descriptor, descriptor_path
from diskless.errors import AlreadyExists, BadRequest, Unauthorized
from diskless.identity.claims import Claims, Role, parse_token
from diskless.launch.local import LocalCluster
from diskless.node import gateway_port
from diskless.spark.conf import PREFIX, TOKEN, Grant, configure, properties
from tests.spark.test_jar import Builder
from tests.support import start_cluster

BY_DESCRIPTOR = f"{PREFIX}descriptor"


def claims_of(settings: dict[str, str]) -> Claims:
    return parse_token(settings[TOKEN]).claims


def keys_and_admins(cluster: LocalCluster) -> list[str]:
    """What nobody but agents and the operator may have."""
    return [cluster.key, cluster.keyring.admin().token.rpartition(".")[2]]


@pytest.fixture
def tls_cluster() -> Iterator[LocalCluster]:
    with start_cluster(agents=3, data_shards=2, parity_shards=1, tls=True) as cluster:
        yield cluster


def test_the_token_is_on_no_command_line(spark: Any, cluster: LocalCluster) -> None:
    token = spark.conf.get(TOKEN)
    assert parse_token(token).claims.cluster == cluster.cluster_id  # it has arrived
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert any(b"SparkSubmit" in line for line in lines)
    assert not any(token.encode() in line for line in lines)


def test_spark_redacts_the_token(spark: Any) -> None:
    shown = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    assert "redacted" in shown[TOKEN]
    assert not any(spark.conf.get(TOKEN) in value for value in shown.values())


def test_spark_has_no_key_and_nothing_of_an_admin(spark: Any, cluster: LocalCluster) -> None:
    told = dict(spark.sparkContext.getConf().getAll())
    assert claims_of(told).role is Role.CLIENT
    everything = [properties(cluster.uri), properties(cluster.uri, by_descriptor=True), told]
    everything.append({"hadoop": str(spark._jsc.hadoopConfiguration().getPropsWithPrefix(""))})
    for settings in everything:
        for value in settings.values():
            assert not any(forbidden in value for forbidden in keys_and_admins(cluster))


def test_the_token_is_only_under_a_key_that_spark_redacts(cluster: LocalCluster) -> None:
    found = properties(cluster.uri)
    assert [key for key, value in found.items() if found[TOKEN] in value] == [TOKEN]
    assert "token" in TOKEN


def test_by_default_a_token_opens_everything_for_ever(cluster: LocalCluster) -> None:
    claims = claims_of(properties(cluster.uri))
    assert (claims.name, claims.paths, claims.writes) == ("spark", ("/",), True)
    assert claims.expires_s == 0
    assert properties(cluster.uri) == properties(cluster.uri)


def test_a_grant_is_what_the_token_claims(cluster: LocalCluster) -> None:
    grant = Grant(paths=("/checkpoints/q1/", "/tables"), writes=False, expires_s=99, name="q1")
    claims = claims_of(properties(cluster.uri, grant=grant))
    assert claims.paths == ("/checkpoints/q1", "/tables")
    assert (claims.name, claims.writes, claims.expires_s) == ("q1", False, 99)


def test_a_token_that_was_made_is_listed_and_a_revoked_name_is_refused(
    client: Client, cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    made = Grant(paths=("/a",), name="listed")
    properties(cluster.uri, grant=made)
    properties(cluster.uri, grant=made)
    assert [known.paths for known in client.tokens() if known.name == "listed"] == [["/a"]]
    assert not caplog.records
    other = properties(cluster.uri, grant=Grant(paths=("/b",), name="listed"))
    assert claims_of(other).paths == ("/b",)  # as good as any
    assert "another has that name" in caplog.text
    client.revoke_token("listed")
    with pytest.raises(AlreadyExists, match="revoked: choose another name"):
        properties(cluster.uri, grant=made)


def test_configure_takes_a_token_or_paths(spark: Any, cluster: LocalCluster) -> None:
    token = cluster.token("/a", name="given")
    assert configure(Builder(), cluster.uri, token=token)._options[TOKEN] == token
    bound = configure(Builder(), cluster.uri, path="/a/b", rights="r")._options
    assert claims_of(bound).paths == ("/a/b",)
    assert not claims_of(bound).writes
    several = configure(Builder(), cluster.uri, path=["/a", "/b"], token_name="two")._options
    assert (claims_of(several).paths, claims_of(several).name) == (("/a", "/b"), "two")
    with pytest.raises(BadRequest, match="not both"):
        configure(Builder(), cluster.uri, token=token, path="/a")
    with pytest.raises(BadRequest, match="'r' or 'rw'"):
        configure(Builder(), cluster.uri, rights="w")


def test_only_a_clients_token_is_taken(cluster: LocalCluster) -> None:
    for credential in (cluster.keyring.admin(), cluster.keyring.agent("agent-0")):
        with pytest.raises(Unauthorized, match="client's token"):
            properties(cluster.uri, token=credential.token)
    with pytest.raises(Unauthorized, match="no token"):
        properties(cluster.uri, token="hunter2")


def test_by_descriptor_a_clients_own_file_is_named(cluster: LocalCluster) -> None:
    grant = Grant(paths=("/a",), name="q2")
    named = Path(properties(cluster.uri, grant=grant, by_descriptor=True)[BY_DESCRIPTOR])
    assert named != descriptor_path(cluster.settings.name)
    assert stat.S_IMODE(named.stat().st_mode) == 0o600
    written = msgspec.json.decode(named.read_bytes(), type=Descriptor)
    assert written.key == ""
    assert written.settings == {}
    assert parse_token(written.token).claims.paths == ("/a",)
    assert not any(forbidden in named.read_text() for forbidden in keys_and_admins(cluster))
    again = properties(cluster.uri, grant=grant, by_descriptor=True)
    assert again[BY_DESCRIPTOR] == str(named)


def test_a_clients_descriptor_is_enough_but_no_paths_can_be_chosen(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another host, or of another user."""
    own = descriptor.load(cluster.settings.name)
    token = cluster.token("/a", name="q3")
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    descriptor.save(msgspec.structs.replace(own, key="", token=token))
    assert properties(own.name)[TOKEN] == token
    with pytest.raises(Unauthorized, match="key of cluster"):
        properties(own.name, grant=Grant())
    monkeypatch.setenv("DISKLESS_TOKEN", cluster.token("/b"))
    assert claims_of(properties(own.name)).paths == ("/b",)


def test_the_authority_is_told_where_doors_are_encrypted(
    tls_cluster: LocalCluster, cluster: LocalCluster
) -> None:
    assert f"{PREFIX}authority" not in properties(cluster.uri)
    told = properties(tls_cluster.uri)
    assert told[f"{PREFIX}authority"]
    assert f"{PREFIX}byHost" not in told
    named = properties(tls_cluster.uri, by_descriptor=True)[BY_DESCRIPTOR]
    written = msgspec.json.decode(Path(named).read_bytes(), type=Descriptor)
    assert "BEGIN CERTIFICATE" in written.authority
    assert written.authority_key == ""
    assert "PRIVATE KEY" not in Path(named).read_text()
    own = descriptor.load(tls_cluster.settings.name)
    descriptor.save(msgspec.structs.replace(own, by_host=True))
    assert properties(tls_cluster.uri)[f"{PREFIX}byHost"] == "true"


def test_the_verb_binds_the_token(cluster: LocalCluster) -> None:
    before = int(time.time())
    options = ("--path", "/checkpoints/q1", "--rights", "r", "--expires", "30d")
    found = json.loads(spark_conf(cluster, *options, "--token-name", "q1", "--json").stdout)
    claims = claims_of(found)
    assert (claims.name, claims.paths, claims.writes) == ("q1", ("/checkpoints/q1",), False)
    month_s = 30 * 86_400
    assert before + month_s <= claims.expires_s <= int(time.time()) + month_s
    for bad in (("--path", "a"), ("--path", "diskless://other/a"), ("--rights", "w")):
        refused = spark_conf(cluster, *bad)
        assert refused.returncode == 2
        assert refused.stdout == ""


def test_a_key_makes_the_same_token_in_the_jvm(jvm: Any, cluster: LocalCluster) -> None:
    made = jvm.io.diskless.spark.Suites.claims(cluster.cluster_id, cluster.key)
    assert made == cluster.keyring.client("spark").text


def spark_conf(cluster: LocalCluster, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "diskless.cli", "spark-conf", "-c", cluster.settings.name, *options],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip


def test_the_line_of_the_readme_needs_no_import_of_its_own() -> None:
    line = "import diskless; print(diskless.spark.configure.__name__); diskless.nothing"
    done = subprocess.run([sys.executable, "-c", line], check=False, capture_output=True, text=True)
    assert done.stdout == "configure\n"
    assert "has no attribute 'nothing'" in done.stderr


def test_an_agent_is_found_again_where_spark_was_told_it_is() -> None:
    with start_cluster(agents=3, data_shards=2, parity_shards=1) as cluster:
        before = {slot: node.gateway_address for slot, node in cluster.nodes.items()}
        for slot in before:
            cluster.kill(slot)
            cluster.revive(slot)
        wanted = {s: gateway_port(cluster.cluster_id, s) for s in before}
        for slot, node in cluster.nodes.items():
            if before[slot].endswith(f":{wanted[slot]}"):  # unless another program had it
                assert node.gateway_address == before[slot]
        assert any(before[slot].endswith(f":{wanted[slot]}") for slot in before)
