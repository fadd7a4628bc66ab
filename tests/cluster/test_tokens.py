"""Clients with tokens on real clusters: their own paths, and nothing else by any way."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

import diskless
from diskless.agent.reader import TOGETHER_MAX, Reader
from diskless.client import Client
from diskless.client.descriptor import load
from diskless.client.greeting import Greeter
from diskless.config import KIB, MIB
from diskless.errors import (
    BadRequest,
    DisklessError,
    Forbidden,
    NotFound,
    Unauthorized,
    Unavailable,
)
from diskless.gateway.lobby import STRANGERS_MAX
from diskless.launch.local import LocalCluster
from diskless.protocol import history
from diskless.protocol import messages as m
from diskless.protocol.messages import Kind
from tests.cluster.test_comeback import Hand
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, STRIPED, content, eventually, on_loop

BIG = content(3 * MIB + 17)
SMALL = replace(BRISK, inline_bytes_max=0)


@pytest.fixture
def cluster(start: StartCluster) -> LocalCluster:
    return start(agents=4, data_shards=2, parity_shards=1, tuning=STRIPED)


class TokenHand(Hand):
    """A client, step by step, with a token."""

    def __init__(self, cluster: LocalCluster, slot: int, token: str) -> None:
        node = cluster.nodes[slot]
        peer = m.Peer(slot, node.gateway_address, node.settings.socket_path, "localhost", True)
        known = m.msgspec.structs.replace(load(cluster.settings.name), token=token)
        deadline = time.monotonic() + 60
        self.connection = Greeter(known).connect(peer, client="test", deadline=deadline)


def names(client: Client, path: str) -> list[str]:
    return [entry.path for entry in client.list(path)]


# Paths.


def test_a_token_works_below_its_path_and_nowhere_else(
    cluster: LocalCluster, connect: Connect
) -> None:
    admin = connect(cluster)
    admin.write("/p/q2/secret", BIG)
    admin.write("/top", b"1")
    client = connect(cluster, token=cluster.token("/p/q1"))
    client.write("/p/q1/small", b"s")
    client.write("/p/q1/big", BIG)
    with client.open("/p/q1/streamed", "wb") as file:
        file.write(BIG)
    client.write_many({"/p/q1/a": b"1", "/p/q1/b": b"2"})
    client.mkdirs("/p/q1/d/e")
    client.rename("/p/q1/a", "/p/q1/d/a")
    assert client.read("/p/q1/big") == client.read("/p/q1/streamed") == BIG
    assert client.read("/p/q1/big", MIB, 100) == BIG[MIB : MIB + 100]
    assert client.delete("/p/q1/b")
    assert client.summary("/p/q1").files == 4
    for refused in (
        lambda: client.read("/p/q2/secret"),
        lambda: client.stat("/p/q2/secret"),
        lambda: client.exists("/p/q2/none"),
        lambda: list(client.list("/p/q2")),
        lambda: client.write("/p/q2/x", b"1"),
        lambda: client.write("/p/q2/x", BIG),
        lambda: client.write_many({"/p/q1/x": b"1", "/p/q2/x": b"1"}),
        lambda: client.write_many({"/p/q1/x": BIG, "/p/q2/x": b"1"}),
        lambda: client.rename("/p/q1/small", "/p/q2/x"),
        lambda: client.rename("/p/q2/secret", "/p/q1/x"),
        lambda: client.rename("/p/q1", "/p/q1-moved"),
        lambda: client.clone("/p/q2", "/p/q1/x"),
        lambda: client.clone("/p/q1/small", "/p/q2/x"),
        lambda: client.delete("/p", recursive=True),
        lambda: client.mkdirs("/p/q2/d"),
        lambda: client.summary("/p"),
        lambda: client.own_bytes("/"),
        lambda: client.drain(3),
    ):
        with pytest.raises(Forbidden, match=r"token 'client'"):
            refused()
    assert not admin.exists("/p/q1/x")
    assert names(admin, "/p/q2") == ["/p/q2/secret"]


def test_a_token_to_read_reads(cluster: LocalCluster, connect: Connect) -> None:
    connect(cluster).write("/p/q1/big", BIG)
    reader = connect(cluster, token=cluster.token("/p/q1", writes=False))
    assert reader.read("/p/q1/big") == BIG
    for refused in (
        lambda: reader.write("/p/q1/x", b"1"),
        lambda: reader.write("/p/q1/x", BIG),
        lambda: reader.delete("/p/q1/big"),
        lambda: reader.snapshot("/p/q1"),
    ):
        with pytest.raises(Forbidden, match="may only read"):
            refused()


def test_a_read_of_thousands_of_small_pieces_stops_no_agent(cluster: LocalCluster) -> None:
    with diskless.connect(f"diskless://{cluster.settings.name}/") as admin:
        admin.write("/p/q1/big", BIG)
        hand = TokenHand(cluster, 1, cluster.token("/p/q1", writes=False))
        extent = hand.done(Kind.OPEN, m.Open("/p/q1/big", 0)).extents[0]
        piece = m.MarkedExtent(extent.stripe, extent.offset, 1, extent.mark)
        with pytest.raises(BadRequest, match="256 extents at most"):
            hand.done(Kind.READ, m.Read([piece] * 20_000))
        hand.done(Kind.READ, m.Read([piece] * 256))
        assert admin.status().margin == 1, "nobody was taken for dead"


def test_the_pieces_of_a_read_are_read_a_few_at_a_time(
    cluster: LocalCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(cluster).write("/p/q1/big", BIG)
    hand = TokenHand(cluster, 1, cluster.token("/p/q1", writes=False))
    extent = hand.done(Kind.OPEN, m.Open("/p/q1/big", 0)).extents[0]
    pieces = [m.MarkedExtent(extent.stripe, n, 1, extent.mark) for n in range(200)]
    read, under_way, most = Reader._read_extent, 0, 0

    async def counted(self: Reader, *about: Any) -> Any:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        await asyncio.sleep(0)  # all that are begun together are seen together
        try:
            return await read(self, *about)
        finally:
            under_way -= 1

    monkeypatch.setattr(Reader, "_read_extent", counted)
    reply = hand.ask(Kind.READ, m.Read(pieces))
    assert bytes(reply.payload) == BIG[:200]
    assert most == TOGETHER_MAX


def test_above_its_paths_a_token_sees_only_the_way(cluster: LocalCluster, connect: Connect) -> None:
    admin = connect(cluster)
    admin.write_many({f"/p/{name}/f": b"1" for name in ("a", "q1", "q2", "q3", "z")})
    admin.write("/file", b"1")
    token = cluster.token("/p/q1", "/p/q3/f", "/p/not-yet", "/file/below")
    client = connect(cluster, token=token)
    assert names(client, "/") == ["/p"]
    assert names(client, "/p") == ["/p/q1", "/p/q3"]
    assert names(client, "/p/q3") == ["/p/q3/f"]
    assert client.stat("/p").directory
    with pytest.raises(Forbidden):
        client.stat("/file")  # a file is no way
    with pytest.raises(Forbidden):
        list(client.list("/file"))
    hand = TokenHand(cluster, 1, token)
    page = hand.done(Kind.LIST, m.List("/p", "", 1))
    assert ([one.path for one in page.entries], page.more) == (["/p/q1"], True)
    page = hand.done(Kind.LIST, m.List("/p", "q1", 1))
    assert ([one.path for one in page.entries], page.more) == (["/p/q3"], False)
    assert hand.done(Kind.LIST, m.List("/p", "q3", 5)).entries == []


def test_a_way_that_is_not_there_is_not_found(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster, token=cluster.token("/deep/down/here"))
    assert names(client, "/") == []
    with pytest.raises(NotFound):
        list(client.list("/deep"))
    client.write("/deep/down/here/f", b"1")
    assert names(client, "/deep") == ["/deep/down"]


def test_snapshots_belong_to_their_directory(cluster: LocalCluster, connect: Connect) -> None:
    admin = connect(cluster)
    admin.write_many({"/p/q1/f": b"then", "/p/q2/f": b"then"})
    admin.snapshot("/p", "above")
    admin.snapshot("/p/q2", "beside")
    for number in range(30):
        admin.snapshot("/p/q2", f"more-{number}")
    client = connect(cluster, token=cluster.token("/p/q1"))
    client.snapshot("/p/q1", "own")
    client.write("/p/q1/f", b"now", overwrite=True)
    assert client.read("/p/q1/.snapshot/own/f") == b"then"
    assert [change.path for change in client.diff("/p/q1", "own")] == ["f"]
    assert [one.name for one in client.snapshots()] == ["own"]
    assert [one.name for one in client.snapshots("/p/q1")] == ["own"]
    hand = TokenHand(cluster, 0, cluster.token("/p/q1"))
    page = hand.done(Kind.SNAPSHOTS, history.Snapshots("", 0, 2))  # by pages of others'
    assert [one.name for one in page.snapshots] == ["own"]
    client.snapshot("/p/q1", "second")
    page = hand.done(Kind.SNAPSHOTS, history.Snapshots("", 0, 1))
    assert ([one.name for one in page.snapshots], page.more) == (["own"], True)
    page = hand.done(Kind.SNAPSHOTS, history.Snapshots("", page.snapshots[-1].id, 1))
    assert ([one.name for one in page.snapshots], page.more) == (["second"], False)
    client.delete_snapshots("/p/q1", "second")
    client.clone("/p/q1/.snapshot/own/f", "/p/q1/back")
    assert client.read("/p/q1/back") == b"then"
    client.rollback("/p/q1", "own")
    assert client.read("/p/q1/f") == b"then"
    for refused in (
        lambda: client.read("/p/.snapshot/above/q1/f"),
        lambda: list(client.list("/p/.snapshot")),
        lambda: client.rollback("/p/q2", "beside"),
        lambda: client.rollback("/p", "above"),
        lambda: client.delete_snapshots("/p/q2", "beside"),
        lambda: client.rename_snapshot("/p/q2", "beside", "x"),
        lambda: client.snapshot_cut(["/p/q1", "/p/q2"]),
        lambda: list(client.diff("/p/q2", "beside")),
        lambda: list(client.snapshots("/p/q2")),
        lambda: client.clone("/p/.snapshot/above/q2", "/p/q1/x"),
    ):
        with pytest.raises(Forbidden):
            refused()


def test_a_cut_is_rolled_back_by_who_covers_all_of_it(
    cluster: LocalCluster, connect: Connect
) -> None:
    admin = connect(cluster)
    admin.write_many({f"/p/q{n}/f": b"then" for n in range(3)})
    admin.snapshot_cut(["/p/q0", "/p/q1"], "both")
    admin.write_many({f"/p/q{n}/f": b"now" for n in range(3)}, overwrite=True)
    one = connect(cluster, token=cluster.token("/p/q0"))
    with pytest.raises(Forbidden, match="cut 'both' has directories") as error:
        one.rollback_cut("both")
    assert "/p/q1" not in str(error.value), "nobody is told of others' paths"
    with pytest.raises(NotFound):
        one.rollback_cut("none")
    assert admin.read("/p/q0/f") == b"now"
    connect(cluster, token=cluster.token("/p/q0", "/p/q1")).rollback_cut("both")
    assert [admin.read(f"/p/q{n}/f") for n in range(3)] == [b"then", b"then", b"now"]


def test_events_of_other_paths_are_not_told(cluster: LocalCluster, connect: Connect) -> None:
    admin = connect(cluster)
    admin.write("/p/q2/other", b"1")
    client = connect(cluster, token=cluster.token("/p/q1"))
    client.write("/p/q1/own", b"1")
    assert any("/p/q2/other" in event.text for event in admin.events())
    assert not any("q2" in event.text or "agent-" in event.text for event in client.events())


# Bytes.


def test_only_extents_of_opened_files_are_read(cluster: LocalCluster, connect: Connect) -> None:
    admin = connect(cluster)
    admin.write("/p/q2/secret", BIG)
    admin.write("/p/q1/own", BIG)
    secret = Hand(cluster, 0).done(Kind.OPEN, m.Open("/p/q2/secret")).extents
    assert all(extent.mark == "" for extent in secret)
    token = cluster.token("/p/q1")
    own = TokenHand(cluster, 0, token).done(Kind.OPEN, m.Open("/p/q1/own")).extents
    hand = TokenHand(cluster, 3, token)  # another agent, which has not opened it
    reply = hand.ask(Kind.READ, m.Read([own[0]]))
    assert bytes(reply.payload) == BIG[: own[0].length]
    stolen = m.MarkedExtent(secret[0].stripe, secret[0].offset, secret[0].length, own[0].mark)
    wider = m.msgspec.structs.replace(own[0], length=own[0].length + 1)
    for extents in ([secret[0]], [own[0], secret[0]], [stolen], [wider]):
        with pytest.raises(Forbidden, match="no file that was opened with this token"):
            hand.done(Kind.READ, m.Read(list(extents)))
    other = TokenHand(cluster, 0, cluster.token("/p", name="other"))
    with pytest.raises(Forbidden):
        other.done(Kind.READ, m.Read([own[0]]))  # another's mark, of a file that it may open
    assert bytes(Hand(cluster, 3).ask(Kind.READ, m.Read([secret[0]])).payload)


def test_an_upload_is_resumed_by_who_wrote_it(cluster: LocalCluster) -> None:
    token = cluster.token("/p/q1")
    sealed = TokenHand(cluster, 0, token).seal(bytes(STRIPED.stripe_bytes))
    size = sealed[0].payload_bytes
    thief = TokenHand(cluster, 1, cluster.token("/p/q1", name="thief"))
    with pytest.raises(Forbidden, match="not sealed for 'thief'"):
        thief.done(Kind.WRITE, m.Write(5, size, list(sealed[:1])), b"x")
    again = TokenHand(cluster, 1, token)
    written = again.done(Kind.WRITE, m.Write(5, size, list(sealed[:1])), b"x")
    assert written.received == size + 1


# Sessions.


def test_nobody_uses_anothers_session(cluster: LocalCluster) -> None:
    """Whoever did could answer the other's next put before it comes: it would be taken for a
    repeat, acknowledged and never carried out."""
    victim = TokenHand(cluster, 0, cluster.token("/p/q1"))
    session = victim.done(Kind.SESSION, m.Empty()).session
    victim.done(Kind.MKDIRS, m.Mkdirs(session, 1, "/p/q1/d"))
    thief_token = cluster.token("/p/q2", name="thief")
    for guess in (session, session & 0x3FFFFFFF, session ^ (1 << 40), 1, 0):
        thief = TokenHand(cluster, 1, thief_token)
        with pytest.raises(DisklessError) as refused:
            thief.done(Kind.MKDIRS, m.Mkdirs(guess, 2, "/p/q2/d"))
        assert "session" in str(refused.value)
        with pytest.raises(Unavailable):  # A second guess costs another connection.
            thief.done(Kind.STAT, m.Stat("/p/q2"))
    assert victim.done(Kind.MKDIRS, m.Mkdirs(session, 2, "/p/q1/e")).created
    assert victim.done(Kind.MKDIRS, m.Mkdirs(session, 2, "/p/q1/e")).created  # a repeat


def test_a_session_is_good_at_every_agent_and_after_a_new_leader(
    cluster: LocalCluster,
) -> None:
    token = cluster.token("/p/q1")
    first = TokenHand(cluster, 0, token)
    session = first.done(Kind.SESSION, m.Empty()).session
    assert first.done(Kind.MKDIRS, m.Mkdirs(session, 1, "/p/q1/a")).created
    for slot in range(4):
        hand = TokenHand(cluster, slot, token)
        assert hand.done(Kind.MKDIRS, m.Mkdirs(session, 1, "/p/q1/a")).created
        assert hand.done(Kind.MKDIRS, m.Mkdirs(session, 2 + slot, f"/p/q1/{slot}")).created


# Who comes how.


def test_revoked_and_expired_tokens_are_refused(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster, token=cluster.token("/p/q1", name="lost"))
    client.write("/p/q1/f", b"1")
    for node in cluster.nodes.values():
        node.doors.doorkeeper.revoked = {"lost"}
        on_loop(cluster, node.doors.gateway.recheck)
    with pytest.raises(Unauthorized, match="'lost' was revoked"):
        client.read("/p/q1/f")
    expired = cluster.keyring.client("old", paths=["/p"], expires_s=1).token
    with pytest.raises(Unauthorized, match="'old' has expired"):
        cluster.connect(token=expired)
    assert connect(cluster).read("/p/q1/f") == b"1"


def test_fsspec_takes_a_token_from_a_file(
    cluster: LocalCluster, connect: Connect, tmp_path: Path
) -> None:
    connect(cluster).write("/other", b"1")
    (tmp_path / "token").write_text(cluster.token("/p/q1"))
    files = fsspec.filesystem(
        "diskless",
        cluster=cluster.uri,
        token_file=str(tmp_path / "token"),
        skip_instance_cache=True,
    )
    files.pipe("/p/q1/f", b"1")
    assert files.cat("/p/q1/f") == b"1"
    assert files.find("/") == ["/p/q1/f"]
    with pytest.raises(PermissionError):
        files.cat("/other")
    assert cluster.token("/p/q1") not in files.to_json()


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_elsewhere_needs_an_address_a_token_and_the_authority(
    start: StartCluster, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=SMALL, tls=tls)
    for node in cluster.nodes.values():
        Path(node.settings.socket_path).unlink()
    uri = f"diskless://{cluster.nodes[1].gateway_address}/"
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path))
    token = cluster.token("/p/q1")
    if cluster.authority is not None:
        with pytest.raises(Unauthorized, match="speaks TLS alone"):
            diskless.connect(uri, token=token)
        (tmp_path / "ca.pem").write_bytes(cluster.authority.chain)
        monkeypatch.setenv("DISKLESS_CA", str(tmp_path / "ca.pem"))
    with diskless.connect(uri, token=token) as client:
        client.write("/p/q1/big", BIG)
        assert client.read("/p/q1/big") == BIG
        assert len(client.agents()) == 4


# Crowds.


@pytest.mark.parametrize("door", ["unix", "tcp", "tls"])
def test_three_thousand_strangers_beside_a_workload_fail_none_of_it(
    start: StartCluster, connect: Connect, door: str
) -> None:
    cluster = start(agents=4, data_shards=2, parity_shards=1, tuning=BRISK, tls=door == "tls")
    client = connect(cluster)
    done, written = threading.Event(), [0]

    def work() -> None:
        while not done.is_set():
            client.write(f"/w/{written[0]}", b"x" * KIB)
            written[0] += 1

    worker = threading.Thread(target=work)
    worker.start()
    gateway = cluster.nodes[0].doors.gateway
    with ExitStack() as stack:
        stack.callback(worker.join)
        stack.callback(done.set)
        for _ in range(3000):
            family = socket.AF_UNIX if door == "unix" else socket.AF_INET
            stranger = stack.enter_context(closing(socket.socket(family)))
            stranger.settimeout(20)
            with suppress(OSError):  # some are turned away at once
                stranger.connect(
                    gateway.unix_path if door == "unix" else ("127.0.0.1", gateway.tcp_port)
                )
                stranger.sendall(b"\xd1")
        before = written[0]
        eventually(lambda: written[0] > before + 20)
        assert on_loop(cluster, lambda: len(gateway.lobby.strangers)) <= STRANGERS_MAX
        assert on_loop(cluster, lambda: len(gateway._connections)) <= STRANGERS_MAX + 20
    assert len(list(client.list("/w"))) == written[0]
