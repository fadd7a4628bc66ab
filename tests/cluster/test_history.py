"""Snapshots, clones and rollbacks of a whole cluster: by its clients, and with agents dying."""

import threading
from collections.abc import Callable

import fsspec
import pytest

from diskless.client import Client
from diskless.config import KIB
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    HasSnapshots,
    NotFound,
    PathIsFile,
    ReadOnly,
)
from diskless.launch.local import LocalCluster
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, content, eventually, is_whole, kill, leader, on_loop

SIZES = (0, 10, 5 * KIB, 100 * KIB, 1500 * KIB)
"""Empty, inline, inline until it is demoted, in a shared stripe, in several."""


def fill(client: Client, top: str, *, seed: str) -> dict[str, bytes]:
    files = {f"{top}/{n % 2}/{n}": content(size, (seed, n)) for n, size in enumerate(SIZES)}
    for path, data in files.items():
        client.write(path, data, overwrite=True)
    return files


def check(client: Client, top: str, files: dict[str, bytes], *, at: str = "") -> None:
    """That the directory `top`, or what is at `at` instead, has these files and no others."""
    found = {entry.path for n in (0, 1) for entry in client.list(f"{at or top}/{n}")}
    assert found == {(at or top) + path.removeprefix(top) for path in files}
    for path, data in files.items():
        assert client.read((at or top) + path.removeprefix(top)) == data


def test_a_snapshot_is_read_by_all_and_changed_by_none(
    start: StartCluster, connect: Connect
) -> None:
    client = connect(start(tuning=BRISK))
    old = fill(client, "/q", seed="old")
    assert client.snapshot("/q", "s") == "s"
    new = fill(client, "/q", seed="new")
    client.delete("/q/1", recursive=True)
    check(client, "/q", old, at="/q/.snapshot/s")
    assert [entry.path for entry in client.list("/q")] == ["/q/0"]
    assert [entry.path for entry in client.list("/q/.snapshot")] == ["/q/.snapshot/s"]
    assert client.read("/q/.snapshot/s/1/3", 90 * KIB, 100) == old["/q/1/3"][90 * KIB :][:100]
    assert client.summary("/q/.snapshot/s").bytes == sum(SIZES)
    with client.open("/q/.snapshot/s/0/4") as file:
        assert file.read() == old["/q/0/4"]
    assert client.read("/q/0/4") == new["/q/0/4"]
    for write in (
        lambda: client.write("/q/.snapshot/s/x", b"1"),
        lambda: client.write("/q/.snapshot", b"1"),
        lambda: client.mkdirs("/q/.snapshot/other"),
        lambda: client.delete("/q/.snapshot/s", recursive=True),
        lambda: client.rename("/q/.snapshot/s/0", "/q/2"),
        lambda: client.rename("/q/0", "/q/.snapshot/s/2"),
        lambda: client.clone("/q/0", "/q/.snapshot/t"),
        lambda: client.snapshot("/q/.snapshot/s", "of-a-snapshot"),
    ):
        with pytest.raises(ReadOnly, match=r"\.snapshot"):
            write()
    check(client, "/q", old, at="/q/.snapshot/s")


def test_fsspec_reads_snapshots(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    client.write("/d/f", b"then")
    client.snapshot("/d", "s")
    client.write("/d/f", b"now", overwrite=True)
    files = fsspec.filesystem("diskless", cluster=cluster.uri)
    assert files.cat("/d/.snapshot/s/f") == b"then"
    assert files.ls("/d", detail=False) == ["/d/f"]
    assert files.ls("/d/.snapshot", detail=False) == ["/d/.snapshot/s"]
    assert files.find("/d/.snapshot/s") == ["/d/.snapshot/s/f"]
    with pytest.raises(PermissionError):
        files.pipe("/d/.snapshot/s/f", b"other")


def test_a_rollback_is_one_step_and_can_be_undone(start: StartCluster, connect: Connect) -> None:
    client = connect(start(tuning=BRISK))
    old = fill(client, "/q", seed="old")
    client.snapshot("/q", "s")
    new = fill(client, "/q", seed="new")
    before = client.rollback("/q", "s")
    check(client, "/q", old)
    check(client, "/q", new, at=f"/q/.snapshot/{before}")
    client.write("/q/0/0", b"later", overwrite=True)
    check(client, "/q", old, at="/q/.snapshot/s")
    client.rollback("/q", before)
    check(client, "/q", new)


def test_a_clone_goes_its_own_way(start: StartCluster, connect: Connect) -> None:
    client = connect(start(tuning=BRISK))
    old = fill(client, "/q", seed="old")
    client.snapshot("/q", "s")
    client.clone("/q", "/canary")
    client.clone("/q/.snapshot/s/0/4", "/one")
    new = fill(client, "/q", seed="new")
    check(client, "/q", old, at="/canary")
    client.write("/canary/0/0", b"mine", overwrite=True)
    check(client, "/q", new)
    client.delete("/q", recursive=True, with_snapshots=True)
    assert client.read("/canary/0/4") == client.read("/one") == old["/q/0/4"]
    assert list(client.snapshots()) == []


def test_a_cut_is_one_moment_of_several_directories(start: StartCluster, connect: Connect) -> None:
    client = connect(start(tuning=BRISK))
    for top in ("/q1", "/q2"):
        client.write(f"{top}/f", b"then")
    client.snapshot_cut(["/q1", "/q2"], "nightly")
    one, two = client.snapshots()
    assert (one.path, two.path, one.cut, two.cut) == ("/q1", "/q2", "nightly", "nightly")
    assert one.op == two.op
    for top in ("/q1", "/q2"):
        client.write(f"{top}/f", b"now", overwrite=True)
    before = client.rollback_cut("nightly")
    assert client.read("/q1/f") == client.read("/q2/f") == b"then"
    client.rollback_cut(before)
    assert client.read("/q1/f") == client.read("/q2/f") == b"now"
    with pytest.raises(BadRequest, match="within"):
        client.snapshot_cut(["/", "/q1"], "nested")


def test_bad_input_gets_one_clear_line(start: StartCluster, connect: Connect) -> None:
    client = connect(start(tuning=BRISK))
    client.write("/d/f", b"1")
    client.mkdirs("/other")
    client.snapshot("/d", "s")
    for kind, says, act in (
        (PathIsFile, "file", lambda: client.snapshot("/d/f", "x")),
        (NotFound, "/gone", lambda: client.snapshot("/gone", "x")),
        (AlreadyExists, "'s'", lambda: client.snapshot("/d", "s")),
        (BadRequest, "name", lambda: client.snapshot("/d", "a/b")),
        (BadRequest, "name", lambda: client.snapshot("/d", ".hidden")),
        (NotFound, "it has s", lambda: client.rollback("/d", "t")),
        (NotFound, "it has s", lambda: client.delete_snapshots("/d", "s", "t")),
        (AlreadyExists, "/other", lambda: client.clone("/d", "/other")),
        (BadRequest, "itself", lambda: client.clone("/d", "/d/e")),
        (NotFound, "/no", lambda: client.clone("/d", "/no/where")),
        (HasSnapshots, r"/d/\.snapshot/s", lambda: client.rename("/d", "/e")),
        (HasSnapshots, r"/d/\.snapshot/s", lambda: client.delete("/d", recursive=True)),
        (HasSnapshots, r"/d/\.snapshot/s", lambda: client.delete("/", recursive=True)),
    ):
        with pytest.raises(kind, match=says) as caught:
            act()
        assert "\n" not in str(caught.value)
    assert [one.name for one in client.snapshots("/d")] == ["s"]
    assert client.read("/d/.snapshot/s/f") == b"1"


def test_bytes_live_while_anything_names_them(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    fill(client, "/q", seed="old")
    assert client.own_bytes("/q") == sum(SIZES)
    client.snapshot("/q", "s")
    assert client.own_bytes("/q") == 0
    client.write("/q/0/0", b"x" * 100, overwrite=True)
    assert client.own_bytes("/q") == 100
    client.delete("/q/1", recursive=True)
    client.delete("/q/0", recursive=True)
    eventually(lambda: client.status().snapshots == 1)
    eventually(lambda: client.status().bytes_only_snapshots == sum(SIZES))
    stored = client.status().bytes_stored
    assert stored > sum(SIZES)
    client.delete_snapshots("/q", "s")
    eventually(lambda: client.status().bytes_stored == 0)
    eventually(lambda: client.status().bytes_only_snapshots == 0)
    assert client.status().snapshots == 0


def test_a_diff_tells_what_came_went_and_changed(start: StartCluster, connect: Connect) -> None:
    client = connect(start(tuning=BRISK))
    for name in ("kept", "gone", "other"):
        client.write(f"/d/{name}", name.encode())
    client.mkdirs("/d/empty")
    client.snapshot("/d", "a")
    client.delete("/d/gone")
    client.write("/d/other", b"123", overwrite=True)
    client.write("/d/sub/new", b"12")
    client.snapshot("/d", "b")
    client.write("/d/later", b"")
    found = [
        (one.kind, one.path, one.bytes_before, one.bytes_after)
        for one in client.diff("/d", "a", "b")
    ]
    assert found == [("-", "gone", 4, 0), ("M", "other", 5, 3), ("+", "sub", 0, 2)]
    assert [change.path for change in client.diff("/d", "b")] == ["later"]
    assert list(client.diff("/d", "b", "b")) == []


def test_restarted_voters_have_the_snapshots(start: StartCluster, connect: Connect) -> None:
    """Every voter is killed and comes back, two at a time: what is left came by state transfer."""
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    old = fill(client, "/q", seed="old")
    client.snapshot("/q", "s")
    new = fill(client, "/q", seed="new")
    client.clone("/q", "/canary")
    for pair in ((0, 1), (2, 3), (4, 5)):
        kill(cluster, *pair)
        cluster.revive(*pair)
        eventually(lambda: is_whole(client, 6))
    check(client, "/q", old, at="/q/.snapshot/s")
    check(client, "/q", new, at="/canary")
    eventually(lambda: len(_weights(cluster)) == 1)
    client.rollback("/q", "s")
    check(client, "/q", old)


def _weights(cluster: LocalCluster) -> set[int]:
    """What the namespace weighs on each voter: all must agree, or they refuse differently."""

    def read() -> set[int]:
        return {node.replica.state.bytes_used for s, node in cluster.nodes.items() if s < 5}

    return on_loop(cluster, read)


TIMES = 400
"""So often a verb is asked for; half as often at most before agents die."""
VERBS: dict[str, Callable[[Client, int], object]] = {
    "create": lambda client, n: client.snapshot("/q", f"new-{n}"),
    "rename": lambda client, n: client.rename_snapshot("/q", "s", "t" if n % 2 == 0 else "s"),
    "clone": lambda client, n: client.clone("/q", f"/clone-{n}"),
    "rollback": lambda client, n: client.rollback("/q", "s"),
    "delete": lambda client, n: client.delete_snapshots("/q", f"old-{n}"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_k_agents_and_the_leader_die_during_a_verb_and_it_happened_or_did_not(
    start: StartCluster, connect: Connect, verb: str
) -> None:
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    files = fill(client, "/q", seed="files")
    client.snapshot("/q", "s")
    for n in range(TIMES):
        if verb == "delete":
            client.snapshot("/q", f"old-{n}")
    done: list[int] = []
    killed, stop = threading.Event(), threading.Event()

    def work() -> None:
        for n in range(TIMES):
            if n == TIMES // 2:
                killed.wait()
            if stop.is_set():
                return
            act = VERBS[verb]
            act(client, n) if verb != "rename" else client.rename_snapshot(
                "/q", "s" if n % 2 == 0 else "t", "t" if n % 2 == 0 else "s"
            )
            done.append(n)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: len(done) >= 5)
    first = leader(cluster).slot
    cluster.kill(first, 5)
    before = len(done)
    killed.set()
    eventually(lambda: len(done) > before)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    names = {one.name for one in client.snapshots("/q")}
    if verb == "create":
        assert names - {"s"} == {f"new-{n}" for n in done}
    elif verb == "delete":
        assert names == {"s"} | {f"old-{n}" for n in range(TIMES) if n not in done}
    elif verb == "rename":
        assert names == {"s" if len(done) % 2 == 0 else "t"}
    elif verb == "rollback":
        assert len(names) == 1 + len(done)
    else:
        tops = {entry.path for entry in client.list("/")}
        assert tops == {"/q"} | {f"/clone-{n}" for n in done}
        check(client, "/q", files, at=f"/clone-{done[-1]}")
    check(client, "/q", files)
