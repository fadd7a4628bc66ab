"""The Python client against real sockets: whatever agents do, once is once and bytes are right."""

import asyncio
import gc
import io
import itertools
import json
import os
import random
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import msgspec
import pytest

from diskless.client import connect
from diskless.client import descriptor as descriptors
from diskless.client.attempts import Attempts
from diskless.client.caller import SEQUENCES_MAX, Caller
from diskless.client.client import Client
from diskless.client.connection import Connection
from diskless.client.descriptor import Descriptor, parse_uri, resolve
from diskless.client.files import Writer, read_bytes
from diskless.client.routes import ASK_S, DOUBT, HINDERED_S, SKIP_S_MAX, SKIP_S_MIN, Routes
from diskless.client.upload import UNSEALED_BYTES_MAX, Upload
from diskless.config import KIB, MIB
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    CorruptData,
    DeadlineExceeded,
    DisklessError,
    NoCluster,
    NoQuorum,
    NotFound,
    NotLeader,
    SessionExpired,
    ShardsAway,
    StaleShards,
    Unauthorized,
    Unavailable,
    UploadLost,
)
from diskless.identity.claims import Keyring
from diskless.protocol.messages import Kind, Peer, Read
from tests.unit.fake_cluster import CLUSTER, SECRET, FakeAgent, FakeCluster, Fault, wait_until

SOON_S = 30.0
"""Far less than the time-out of the client that is to give up, or to end."""
BLOCK = random.Random(7).randbytes(3 * MIB + 12345)


def content(size: int) -> bytes:
    return (BLOCK * (size // len(BLOCK) + 1))[:size]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with closing(FakeCluster(tmp_path)) as made:
        yield made


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    with make_client(cluster) as made:
        yield made


def make_client(cluster: FakeCluster, *, timeout_s: float = 10.0) -> Client:
    return Client(Caller(cluster.descriptor, timeout_s=timeout_s))


def read_in_steps(file: IO[bytes], step: int) -> bytes:
    return b"".join(iter(lambda: file.read(step), b""))


async def die(agent: FakeAgent) -> None:
    await agent.cluster.die(agent)


# Content.


@pytest.mark.parametrize(
    "size", [0, 1, 64 * KIB, 64 * KIB + 1, MIB, MIB + 1, 8 * MIB, 19 * MIB + 5]
)
def test_a_file_is_read_as_it_was_written(cluster, client, size):
    status = client.write("/a/file", content(size))
    assert (status.path, status.size) == ("/a/file", size)
    assert client.read("/a/file") == content(size)
    with client.open("/a/file") as file:
        assert file.read() == content(size)


@pytest.mark.parametrize("size", [1000, 5 * MIB])
def test_a_part_of_a_file_is_read_without_the_rest(client, size):
    data = content(size)
    client.write("/f", data)
    for offset, length in [(0, 10), (7, 0), (size - 5, 99), (size, 5), (size + 9, 5), (3, None)]:
        end = None if length is None else offset + length
        assert client.read("/f", offset, length) == data[offset:end]
    with pytest.raises(BadRequest):
        client.read("/f", -1)


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_a_file_is_replaced_only_if_asked(client, size):
    client.write("/f", b"first")
    with pytest.raises(AlreadyExists):
        client.write("/f", content(size))
    assert client.read("/f") == b"first"
    client.write("/f", content(size), overwrite=True)
    assert client.read("/f") == content(size)


@pytest.mark.parametrize("sizes", [(3, 0, 9), (MIB, 7, 2 * MIB), (2000,) * 700])
def test_several_files_appear_in_one_step_or_not_at_all(cluster, client, sizes):
    files = {f"/d/{number}": content(size) for number, size in enumerate(sizes)}
    client.write_many(files)
    assert {path: client.read(path) for path in files} == files
    assert len(cluster.state.executed) == 1
    with pytest.raises(AlreadyExists):
        client.write_many({"/d/new": b"x" * sum(sizes), "/d/0": b""})
    assert not client.exists("/d/new")


def test_small_files_and_metadata_go_to_the_leader_and_bulk_to_one_agent(cluster, client):
    cluster.state.leader = 2
    client.exists("/nothing")  # Learns who leads.
    cluster.state.asked.clear()
    client.write("/small", b"x")
    client.exists("/small")
    assert {slot for _, slot in cluster.state.asked} == {2}
    for number in range(3):
        client.write(f"/large{number}", content(3 * MIB))
    assert len(set(cluster.state.kinds(Kind.WRITE))) == 1


def test_different_clients_prefer_different_agents_for_bulk():
    peers = [Peer(slot, f"h:{slot}", f"/s{slot}", "h", True) for slot in range(4)]
    picked = {
        Routes(peers, salt=str(salt), is_local=lambda _: True).pick(bulk=True, now=0.0).slot
        for salt in range(50)
    }
    assert picked == {0, 1, 2, 3}


def test_an_agent_on_this_host_is_preferred_and_one_that_failed_is_passed_over():
    peers = [Peer(slot, f"h:{slot}", f"/s{slot}", "h", True) for slot in range(3)]
    routes = Routes(peers, salt="", is_local=lambda path: path == "/s1")
    assert routes.pick(bulk=True, now=0.0).slot == 1
    routes.failed(peers[1], 0.0)
    assert routes.pick(bulk=True, now=SKIP_S_MIN / 2).slot != 1
    assert routes.pick(bulk=True, now=SKIP_S_MIN * DOUBT).slot == 1


@pytest.mark.parametrize("silent", list(itertools.combinations(range(6), 3)))
def test_silent_agents_are_not_asked_again_before_all_others_were(silent):
    peers = [Peer(slot, f"h:{slot}", "", "h", True) for slot in range(6)]
    routes, asked, now = Routes(peers, salt=""), [], 0.0
    while len(asked) < 6:
        peer = routes.pick(bulk=False, now=now)
        asked.append(peer.slot)
        now += SKIP_S_MIN / 2 if peer.slot in silent else HINDERED_S
        (routes.failed if peer.slot in silent else routes.hindered)(peer, now)
    assert all(asked.count(slot) <= 1 for slot in silent)
    assert set(asked) - set(silent)


def test_a_slow_agent_is_asked_last_of_those_that_are_up_even_if_it_is_the_only_one_here():
    peers = [Peer(slot, f"h:{slot}", f"/s{slot}", "h", slot != 2, slot == 1) for slot in range(3)]
    routes = Routes(peers, salt="", is_local=lambda path: path == "/s1")
    assert [peer.slot for peer in routes.peers] == [0, 1, 2]
    routes.learn(leader=1, version=1)
    assert routes.pick(bulk=True, now=0.0).slot == 0
    assert routes.pick(bulk=False, now=0.0).slot == 1, "only the leader knows the namespace"


def test_an_agent_that_cannot_help_for_now_is_passed_over_for_a_moment():
    peers = [Peer(slot, f"h:{slot}", "", "h", True) for slot in range(2)]
    routes = Routes(peers, salt="")
    first = routes.pick(bulk=False, now=0.0)
    routes.hindered(first, 0.0)
    assert routes.pick(bulk=False, now=HINDERED_S) != first, "another was not asked yet"
    assert routes.pick(bulk=False, now=HINDERED_S + 2 * ASK_S) == first


def test_while_all_have_failed_lately_they_are_asked_in_turn():
    peers = [Peer(slot, f"h:{slot}", "", "h", True) for slot in range(3)]
    routes = Routes(peers, salt="")
    asked = []
    for step in range(9):
        peer = routes.pick(bulk=True, now=step / 100)
        asked.append(peer.slot)
        routes.failed(peer, step / 100)
    assert asked[:3] == asked[3:6] == asked[6:]
    assert set(asked) == {0, 1, 2}


def test_an_agent_that_fails_again_and_again_is_passed_over_for_longer_until_it_works():
    peers = [Peer(slot, f"h:{slot}", "", "h", True) for slot in range(3)]
    routes = Routes(peers, salt="")
    routes.learn(leader=1, version=1)
    now = 0.0
    for skip_s in (SKIP_S_MIN, 2 * SKIP_S_MIN, 4 * SKIP_S_MIN, SKIP_S_MAX, SKIP_S_MAX):
        routes.failed(peers[1], now)
        routes.failed(peers[1], now + 0.01)  # another thread's request, the same failure
        routes.learn(leader=1, version=1)  # an agent that has not noticed
        assert routes.pick(bulk=False, now=now + skip_s - 0.01).slot != 1
        assert routes.pick(bulk=False, now=now + skip_s).slot == 1
        now += skip_s
    routes.worked(peers[1])
    routes.failed(peers[1], now)
    routes.learn(leader=1, version=1)
    assert routes.pick(bulk=False, now=now + SKIP_S_MIN).slot == 1


# Names.


def test_the_namespace_operations_reach_the_namespace(client):
    assert client.mkdirs("/d") is True
    assert client.mkdirs("/d") is False
    client.write("/d/a", b"abc")
    client.rename("/d/a", "/d/b")
    assert not client.exists("/d/a")
    assert client.stat("/d/b").size == 3
    assert client.summary("/").bytes == 3
    assert client.status().margin == 2
    assert client.delete("/d/b") is True
    assert client.delete("/d/b") is False
    with pytest.raises(NotFound):
        client.rename("/d/b", "/d/c")
    with pytest.raises(FileNotFoundError):
        client.read("/d/b")


def test_a_long_directory_is_listed_page_by_page(cluster, client):
    names = [f"/d/{number:05d}" for number in range(2500)]
    client.write_many(dict.fromkeys(names, b""))
    assert [status.path for status in client.list("/d")] == names
    assert len(cluster.state.kinds(Kind.LIST)) == 3


# Failures.


def test_a_put_whose_answer_was_lost_happens_once(cluster, client):
    cluster.state.faults.append(Fault(Kind.PUT, after=die))
    status = client.write("/f", b"data")
    assert status == cluster.state.files["/f"].status
    assert len([kind for kind, _ in cluster.state.executed if kind is Kind.PUT]) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("operation", ["rename", "delete", "mkdirs"])
def test_a_mutation_survives_the_death_of_its_agent(cluster, client, moment, operation):
    client.write("/f", b"data")
    cluster.state.faults.append(Fault(Kind[operation.upper()], **{moment: die}))
    if operation == "rename":
        client.rename("/f", "/g")
        assert client.read("/g") == b"data"
    elif operation == "delete":
        assert client.delete("/f") is True
    else:
        assert client.mkdirs("/d") is True


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("skip", [0, 3, 11])
def test_an_upload_goes_on_elsewhere_when_its_agent_dies(cluster, client, moment, skip):
    data = content(14 * MIB + 77)
    cluster.state.faults.append(Fault(Kind.WRITE, skip=skip, **{moment: die}))
    client.write("/f", data)
    assert client.read("/f") == data
    assert len(set(cluster.state.kinds(Kind.WRITE))) == 2
    resent = len(cluster.state.kinds(Kind.WRITE)) - 14
    assert resent <= 10, "sealed bytes were sent again"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_whose_agent_dies_happens_once(cluster, client, moment):
    data = content(5 * MIB)
    cluster.state.faults.append(Fault(Kind.COMMIT, **{moment: die}))
    status = client.write("/f", data)
    assert status == cluster.state.files["/f"].status
    assert client.read("/f") == data
    assert [kind for kind, _ in cluster.state.executed] == [Kind.COMMIT]


def test_k_agents_may_die_during_one_upload_and_a_streaming_writer_goes_on(cluster, client):
    data = content(20 * MIB)
    cluster.state.faults += [Fault(Kind.WRITE, skip=4, after=die), Fault(Kind.COMMIT, before=die)]
    with client.open("/f", "wb") as file:
        for start in range(0, len(data), 333_333):
            file.write(data[start : start + 333_333])
    assert client.read("/f") == data
    assert len(cluster.gateways) == 1


@pytest.mark.parametrize("skip", [0, 5])
def test_a_read_goes_on_elsewhere_when_its_agent_dies(cluster, client, skip):
    data = content(12 * MIB)
    client.write("/f", data)
    cluster.state.faults.append(Fault(Kind.READ, skip=skip, before=die))
    assert client.read("/f") == data
    cluster.state.faults.append(Fault(Kind.READ, skip=skip, before=die))
    with client.open("/f") as file:
        assert read_in_steps(file, 100_000) == data
    assert len(cluster.gateways) == 1


def test_a_lost_upload_is_sent_again_by_write_under_the_same_numbers(cluster, client):
    async def lose(agent: FakeAgent) -> None:
        cluster.state.stripes.clear()
        await die(agent)

    cluster.state.faults.append(Fault(Kind.WRITE, skip=12, before=lose))
    client.write("/f", content(20 * MIB))
    assert client.read("/f") == content(20 * MIB)


def test_a_lost_upload_of_a_stream_is_raised_and_nothing_is_visible(cluster, client):
    async def lose(agent: FakeAgent) -> None:
        cluster.state.stripes.clear()
        await die(agent)

    cluster.state.faults.append(Fault(Kind.WRITE, skip=12, before=lose))
    with pytest.raises(UploadLost), client.open("/f", "wb") as file:
        file.write(content(24 * MIB))
    assert not client.exists("/f")


def refuse(error: Exception):
    async def raise_it(agent: FakeAgent) -> None:
        raise error

    return raise_it


@pytest.mark.parametrize("error", [NotLeader("x"), Unavailable("x"), StaleShards("x")])
@pytest.mark.parametrize("size", [10, 3 * MIB])
def test_retryable_refusals_are_retried_with_the_same_numbers(cluster, client, error, size):
    kind = Kind.PUT if size == 10 else Kind.COMMIT
    cluster.state.faults += [Fault(kind, before=refuse(error)) for _ in range(3)]
    client.write("/f", content(size))
    assert client.read("/f") == content(size)
    assert len(cluster.state.answers) == 1


def test_an_expired_session_is_renewed_for_a_command_that_was_never_sent(cluster, client):
    client.write("/a", b"")
    cluster.state.sessions.clear()
    client.write("/b", b"")
    cluster.state.sessions.clear()
    client.write("/c", content(4 * MIB))
    assert client.read("/c") == content(4 * MIB)


@pytest.mark.parametrize("size", [10, 3 * MIB])
def test_an_expired_session_is_raised_when_the_command_may_have_run(cluster, client, size):
    async def die_and_forget(agent: FakeAgent) -> None:
        cluster.state.sessions.clear()
        cluster.state.answers.clear()
        await die(agent)

    client.write("/a", b"")
    kind = Kind.PUT if size == 10 else Kind.COMMIT
    cluster.state.faults.append(Fault(kind, after=die_and_forget))
    with pytest.raises(SessionExpired):
        client.write("/b", content(size))
    executed = [ran for ran, _ in cluster.state.executed]
    assert executed.count(kind) == (2 if kind is Kind.PUT else 1)  # /a was a put too.


def test_a_deadline_names_the_operation_the_path_and_the_last_error(cluster):
    with make_client(cluster) as client:
        client.exists("/f")
        for slot in list(cluster.gateways):
            cluster.kill(slot)
        client._caller.timeout_s = 0.5
        with pytest.raises(DeadlineExceeded, match=r"rename /f to /g: gave up after \d\.\d s") as e:
            client.rename("/f", "/g")
        assert "agent-" in str(e.value)
        assert isinstance(e.value, TimeoutError)


def wait_for(released: threading.Event):
    async def hang(agent: FakeAgent) -> None:
        while not released.is_set():
            await asyncio.sleep(0.01)

    return hang


def test_a_silent_agent_does_not_use_up_the_deadline(cluster):
    released = threading.Event()
    cluster.state.faults.append(Fault(Kind.STAT, before=wait_for(released)))
    with make_client(cluster, timeout_s=18.0) as client:
        client.write("/f", b"")
        assert client.stat("/f").size == 0
    assert len(cluster.state.kinds(Kind.STAT)) == 2
    released.set()


def test_a_wrong_key_is_raised_as_soon_as_no_agent_takes_it(cluster):
    wrong = msgspec.structs.replace(cluster.descriptor, key="00" * 32)
    with closing(Caller(wrong, timeout_s=60)) as caller:
        began = time.monotonic()
        with pytest.raises(Unauthorized, match=r"the process at .* not an agent of .* test"):
            Client(caller).exists("/f")
        assert time.monotonic() - began < SOON_S


def test_agents_that_came_back_elsewhere_are_found_through_the_roster(cluster, client):
    client.write("/f", b"x")
    for slot in range(3):
        cluster.kill(slot)
        wait_until(lambda slot=slot: slot not in cluster.gateways, "it is dead")
        cluster.start(slot)
        cluster.state.leader = slot
        assert client.read("/f") == b"x"


def test_agents_that_all_came_back_elsewhere_are_found_through_the_descriptor(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path / "home"))
    cluster._local = False
    for slot in range(3):
        cluster.kill(slot)
        cluster.start(slot)
    descriptors.save(cluster.descriptor)
    with connect("diskless://test/") as client:
        for slot in range(3):
            cluster.kill(slot)
            cluster.start(slot)
        cluster.state.leader = 0
        descriptors.save(cluster.descriptor)
        assert client.exists("/f") is False


def test_a_cluster_that_was_replaced_under_its_name_is_reported_at_once(home, cluster):
    descriptors.save(cluster.descriptor)
    with connect("diskless://test/", timeout_s=60.0) as client:
        client.write("/f", b"x")
        for slot in list(cluster.gateways):
            cluster.kill(slot)
        successor = msgspec.structs.replace(cluster.descriptor, cluster="its successor")
        descriptors.save(successor)
        began = time.monotonic()
        for operation in (client.read, client.delete, lambda path: client.open(path, "rb")):
            with pytest.raises(NoCluster, match=r"test was replaced.*connect again"):
                operation("/f")
        assert time.monotonic() - began < SOON_S


def test_an_agent_is_asked_again_while_the_name_means_another_cluster(home, cluster):
    descriptors.save(cluster.descriptor)
    with connect("diskless://test/") as client:
        client.write("/f", b"x")
        descriptors.save(msgspec.structs.replace(cluster.descriptor, cluster="its successor"))
        for slot in (0, 1):
            cluster.kill(slot)
        assert client.read("/f") == b"x"


@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n padded to the size of a header",
        b"\xd1\x5c\x01\x80" + bytes(20),
        b"\xd1\x5c\x01\x80\x00\x00\x00\x01" + (1).to_bytes(8, "big") + b"\x00\x00\x00\x02" * 2,
        b"\xd1\x5c",
    ],
)
def test_a_garbled_reply_drops_the_connection_and_another_agent_answers(cluster, tmp_path, noise):
    path = tmp_path / "noisy.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def babble() -> None:
        while True:
            try:
                stranger, _ = listener.accept()
            except OSError:
                return
            stranger.recv(4096)
            stranger.sendall(noise + b"{}xx")
            stranger.close()

    thread = threading.Thread(target=babble, daemon=True)
    thread.start()
    noisy = Peer(9, "127.0.0.1:1", str(path), "here", True)
    peers = [noisy, cluster.state.peers[0]]
    seeds = Descriptor(cluster=CLUSTER, name="x", key=SECRET, gateways=peers)
    for _ in range(4):  # Each client begins at one of the two, by chance.
        with closing(Caller(seeds, timeout_s=10)) as caller:
            assert Client(caller).exists("/f") is False
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_socket_of_another_cluster_is_passed_over_for_tcp(cluster, tmp_path):
    stranger = Keyring(cluster=CLUSTER, root=bytes(32))
    with closing(FakeCluster(tmp_path / "other", agents=2, keyring=stranger)) as other:
        real = cluster.state.peers[1]
        misled = Peer(1, real.gateway, other.state.peers[1].socket, "here", True)
        seeds = Descriptor(cluster=CLUSTER, name="x", key=SECRET, gateways=[misled])
        with closing(Caller(seeds, timeout_s=10)) as caller:
            assert Client(caller).exists("/f") is False
        assert other.state.asked == []


# Threads and processes.


def test_many_threads_share_a_client(cluster, client):
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                data = content(number * 30_000 + turn)
                client.write(f"/t/{number}/{turn}", data)
                assert client.read(f"/t/{number}/{turn}") == data
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    cluster.kill(1)
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(cluster.state.answers) == 160
    assert len({session for session, _ in cluster.state.answers}) == 1


def test_a_mutation_that_is_repeated_for_long_does_not_fall_out_of_its_session(cluster, client):
    """Others of the same client go on meanwhile, beyond what agents remember of a session."""
    caller = client._caller
    attempts = caller.attempts("a slow one")
    slow = caller.ticket(attempts)
    sessions = {caller.ticket(attempts).session for _ in range(SEQUENCES_MAX)}
    assert sessions == {slow.session}
    later = [caller.ticket(attempts) for _ in range(3)]
    assert slow.session not in {ticket.session for ticket in later}
    del slow, later
    last = caller.ticket(attempts).session
    assert {caller.ticket(attempts).session for _ in range(2 * SEQUENCES_MAX)} == {last}


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child, which must end well."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the edge of a process
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_has_a_session_of_its_own(cluster, client):
    client.write("/parent", b"1")
    in_child(lambda: client.write("/child", b"2"))
    client.write("/parent2", b"3")
    assert client.read("/child") == b"2"
    assert len(cluster.state.answers) == 3
    assert len({session for session, _ in cluster.state.answers}) == 2


@pytest.fixture
def nothing_else_to_collect() -> None:
    """A forked child must not collect gRPC's objects of earlier tests: it would spin."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("nothing_else_to_collect")
def test_what_a_forked_child_inherits_and_forgets_is_still_the_parents(cluster, client):
    data = content(9 * MIB)
    files = [client.open("/f", "wb")]
    files[0].write(data[: 5 * MIB])

    def forget() -> None:
        files.clear()
        gc.collect()

    in_child(forget)
    assert cluster.state.kinds(Kind.ABORT) == []
    files[0].write(data[5 * MIB :])
    files[0].close()
    assert client.read("/f") == data


def test_a_forked_child_cannot_go_on_with_an_upload_of_its_parent(cluster, client):
    data = content(9 * MIB)
    file = client.open("/f", "wb")
    file.write(data[: 5 * MIB])

    def go_on() -> None:
        with pytest.raises(UploadLost, match="not a fork"):
            file.write(data[5 * MIB :])
        with pytest.raises(UploadLost):
            file.close()

    def commit() -> None:
        with pytest.raises(UploadLost, match="not a fork"):
            file.close()

    in_child(go_on)
    in_child(commit)
    assert cluster.state.executed == []
    file.write(data[5 * MIB :])
    file.close()
    assert client.read("/f") == data


@pytest.mark.parametrize("step", [100_000, MIB])
def test_parent_and_forked_children_read_on_in_the_same_file(client, step):
    data = content(9 * MIB)
    client.write("/f", data)
    client._caller.timeout_s = 600.0  # who waits does so for long
    file = client.open("/f")
    got = b"".join(file.read(step) for _ in range(3 * MIB // step))  # More is under way.
    began = time.monotonic()

    def read_on() -> None:
        assert read_in_steps(file, step) == data[len(got) :]
        client.write("/child", b"x", overwrite=True)

    for _ in range(3):
        in_child(read_on)
        got += file.read(step)
    assert got + read_in_steps(file, step) == data
    assert time.monotonic() - began < SOON_S, "somebody waited for what another one took"
    file.close()


LEFT_OPEN = {
    "a client": "client.write('/f', b'x')",
    "a reader": "file = client.open('/large'); file.read(1_500_000)",
    "a writer": "file = client.open('/new', 'wb'); file.write(bytes(5_000_000))",
    "a cycle": "client.exists('/f'); client.itself = client; del client",
    "a forked child": "client.exists('/f'); os.fork() and os.wait(); client.exists('/f')",
    "a late user": "client.exists('/f'); atexit.register(client.read, '/large')",
    "a file system": "DisklessFileSystem('test').pipe_file('/f', b'x')",
}


@pytest.mark.parametrize("what", LEFT_OPEN)
def test_a_program_that_closes_nothing_ends_at_once_and_without_a_warning(home, cluster, what):
    descriptors.save(cluster.descriptor)
    with connect("test") as client:
        client.write("/large", content(9 * MIB))
    script = f"""
import atexit, gc, os
from diskless.client import connect
from diskless.client.fsspec import DisklessFileSystem
client = connect("test", timeout_s=600)
{LEFT_OPEN[what]}
gc.collect()
print("done", flush=True)
"""
    released = threading.Event()
    cluster.state.faults.append(Fault(Kind.ABORT, before=wait_for(released)))
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout.readline() == "done\n", program.stderr.read()
        _, errors = program.communicate(timeout=SOON_S)
    released.set()
    assert (program.returncode, errors) == (0, "")
    assert "/new" not in cluster.state.files


def test_a_closed_client_refuses_to_work(client):
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.exists("/f")


# Writers.


def test_an_upload_keeps_only_what_is_not_sealed(cluster):
    cluster.state.forgets_bytes = True
    caller = Caller(cluster.descriptor, timeout_s=10)
    chunk = memoryview(content(MIB))
    with closing(caller):
        upload = Upload(caller, what="write /f", path="/f")
        most = 0
        for _ in range(300):
            upload.append(chunk)
            most = max(most, upload.unsealed_bytes)
        upload.abort()
    assert upload.size == 300 * MIB
    assert most <= UNSEALED_BYTES_MAX + MIB


def test_a_file_appears_when_it_is_closed_and_not_before(client):
    with client.open("/f", "wb") as file:
        file.write(content(3 * MIB))
        assert not client.exists("/f")
    assert client.read("/f") == content(3 * MIB)
    assert isinstance(file, Writer)
    assert file.status == client.stat("/f")


@pytest.mark.parametrize("size", [10, 5 * MIB])
def test_an_exception_in_the_with_block_leaves_nothing(cluster, client, size):
    def write_and_break() -> None:
        with client.open("/f", "wb") as file:
            file.write(content(size))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_break()
    assert not client.exists("/f")
    assert all(not agent.uploads for agent in cluster.agents.values())


@pytest.mark.parametrize("size", [10, 5 * MIB])
def test_a_writer_that_is_forgotten_leaves_nothing(client, size):
    client.open("/f", "wb").write(content(size))
    gc.collect()
    assert not client.exists("/f")


def test_a_writer_may_be_given_mutable_buffers_of_any_size(client):
    data, buffer = content(4 * MIB), bytearray(700_001)
    with client.open("/f", "wb") as file:
        for start in range(0, len(data), len(buffer)):
            part = data[start : start + len(buffer)]
            buffer[: len(part)] = part
            assert file.write(memoryview(buffer)[: len(part)]) == len(part)
        assert file.tell() == len(data)
    assert client.read("/f") == data


@pytest.mark.parametrize("size", [10, 3 * MIB])
def test_xb_refuses_to_replace_a_file_and_wb_replaces_it(client, size):
    client.write("/f", b"first")
    file = client.open("/f", "xb")
    file.write(content(size))
    with pytest.raises(AlreadyExists):
        file.close()
    assert client.read("/f") == b"first"
    with client.open("/f", "wb") as file:
        file.write(content(size))
    assert client.read("/f") == content(size)


def test_text_may_be_written_and_read_through_a_wrapper(client):
    with io.TextIOWrapper(client.open("/t", "wb"), "utf-8") as text:
        text.write("eins\nzwei\n")
    with io.TextIOWrapper(client.open("/t"), "utf-8") as text:
        assert list(text) == ["eins\n", "zwei\n"]


# Readers.


@pytest.mark.parametrize("step", [1000, 64 * KIB, MIB, 3 * MIB])
def test_a_file_is_read_in_order_with_several_reads_under_way(cluster, client, step):
    data = content(9 * MIB + 13)
    client.write("/f", data)
    with client.open("/f") as file:
        assert read_in_steps(file, step) == data
    assert len(cluster.state.kinds(Kind.READ)) <= 16


def test_a_reader_in_order_has_the_next_pieces_under_way(cluster, client):
    client.write("/f", content(9 * MIB))
    with client.open("/f") as file:
        file.read(200_000)
        wait_until(lambda: len(cluster.state.kinds(Kind.READ)) == 3, "two more are asked for")


def test_each_piece_of_a_large_read_lies_within_one_stripe(cluster, client):
    data = content(9 * MIB + 13)
    client.write("/f", data)
    assert client.read("/f") == data
    with client.open("/f") as file:
        assert read_in_steps(file, 100_000) == data
    assert set(cluster.state.extents_read) == {1}


def test_the_result_of_a_large_read_is_allocated_once():
    def fill(view: memoryview) -> None:
        view[:3] = b"abc"

    tracemalloc.start()
    try:
        data = read_bytes(fill, 8 * MIB)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data == b"abc".ljust(8 * MIB, b"\0")
    assert most < 9 * MIB


def test_random_access_fetches_little(cluster, client):
    data = content(8 * MIB)
    client.write("/f", data)
    fetched = cluster.gateways[0].counters.bytes_out
    rng = random.Random(3)
    with client.open("/f") as file:
        for _ in range(40):
            start = rng.randrange(len(data))
            assert file.seek(start) == start
            assert file.read(100) == data[start : start + 100]
        file.seek(-7, io.SEEK_END)
        assert file.read() == data[-7:]
        file.seek(0)
        assert file.read() == data
    served = sum(gateway.counters.bytes_out for gateway in cluster.gateways.values())
    assert served - fetched < 41 * 17 * KIB + len(data) + MIB


def corrupt(cluster: FakeCluster, path: str) -> None:
    file = cluster.state.files[path]
    if file.inline is not None:
        file.inline = b"X" + file.inline[1:]
    else:
        name = file.extents[-1].stripe
        cluster.state.stripes[name] = b"X" + cluster.state.stripes[name][1:]


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_a_file_read_from_start_to_end_is_checked(cluster, client, size):
    client.write("/f", b"a" * size)
    corrupt(cluster, "/f")
    with pytest.raises(CorruptData, match="/f: checksum"):
        client.read("/f")
    with pytest.raises(CorruptData), client.open("/f") as file:
        read_in_steps(file, 100_000)


def test_pieces_that_come_in_another_order_are_checked_in_theirs(cluster, client):
    data = content(6 * MIB)
    client.write("/f", data)

    async def last(_: FakeAgent) -> None:
        while len(cluster.state.kinds(Kind.READ)) < 6:
            await asyncio.sleep(0.01)

    cluster.state.faults.append(Fault(Kind.READ, before=last))
    assert client.read("/f") == data
    corrupt(cluster, "/f")
    cluster.state.asked.clear()
    cluster.state.faults.append(Fault(Kind.READ, before=last))
    with pytest.raises(CorruptData, match="/f: checksum"):
        client.read("/f")


def test_an_opened_file_that_is_replaced_is_read_on_as_it_was(client):
    old, new = content(6 * MIB), b"new" * MIB
    client.write("/f", old)
    with client.open("/f") as file:
        first = file.read(100)
        client.write("/f", new, overwrite=True)
        assert first + file.read() == old
    assert client.read("/f") == new


@pytest.mark.parametrize("step", [100_000, -1])
def test_an_opened_file_whose_bytes_were_freed_is_never_read_as_another(cluster, client, step):
    client.write("/f", content(6 * MIB))
    with client.open("/f") as file:
        file.read(100)
        cluster.state.stripes.clear()
        client.write("/f", b"new" * MIB, overwrite=True)
        with pytest.raises(NotFound, match="was replaced"):
            read_in_steps(file, step)


@pytest.mark.parametrize("step", [100_000, -1])
def test_an_opened_file_whose_bytes_moved_is_read_on(cluster, client, step):
    data = content(6 * MIB)
    client.write("/f", data)
    with client.open("/f") as file:
        got = [file.read(100_000)]
        moved = {f"moved-{name}": bytes_ for name, bytes_ in cluster.state.stripes.items()}
        record = cluster.state.files["/f"]
        record.extents = [type(e)(f"moved-{e.stripe}", e.offset, e.length) for e in record.extents]
        cluster.state.stripes.clear()
        cluster.state.stripes.update(moved)
        got.append(read_in_steps(file, step))
    assert b"".join(got) == data


# Connections.


def test_a_connection_gives_pipelined_replies_to_those_who_asked(cluster, client):
    client.write("/f", content(4 * MIB))
    extents = cluster.state.files["/f"].extents
    caller = Caller(cluster.descriptor, timeout_s=10)
    with closing(caller):
        attempts = caller.attempts("read /f")
        connection: Connection = caller.take(bulk=True, deadline=attempts.deadline)
        targets = {}
        for extent in extents:
            target = memoryview(bytearray(extent.length))
            number = connection.send(
                Kind.READ, Read([extent]), deadline=attempts.deadline, into=target
            )
            targets[number] = target
        while connection.outstanding:
            assert connection.receive(deadline=attempts.deadline).error is None
        assert b"".join(targets.values()) == content(4 * MIB)
        caller.give_back(connection)


def test_pauses_between_attempts_grow_and_end_at_the_deadline():
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    attempts = Attempts("stat /f", timeout_s=2.0, clock=lambda: now[0], sleep=sleep)

    def fail_for_ever() -> None:
        while True:
            attempts.failed(Unavailable("down"))

    with pytest.raises(DeadlineExceeded, match=r"stat /f: gave up after .* Unavailable: down"):
        fail_for_ever()
    assert pauses[0] <= 0.01
    assert 0.1 < max(pauses) <= 0.25


@pytest.mark.parametrize("cause", [NoQuorum("2 of 5"), ShardsAway("3 of 4")])
def test_what_explains_the_failures_is_told_in_the_end_whatever_came_after(cause: DisklessError):
    now = [0.0]
    attempts = Attempts("read /f", timeout_s=0.02, clock=lambda: now[0])
    attempts.failed(cause)
    now[0] += 1
    with pytest.raises(DeadlineExceeded, match=f"last error: {cause.reason}: {cause}"):
        attempts.failed(Unavailable("silent"))
    attempts.progressed()
    now[0] += 1
    with pytest.raises(DeadlineExceeded, match="last error: Unavailable: silent"):
        attempts.failed(Unavailable("silent"))


# Descriptors.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISKLESS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DISKLESS_TOKEN", raising=False)
    return tmp_path / "home"


def make_descriptor(name: str = "default") -> Descriptor:
    peer = Peer(0, "10.0.0.1:7000", "/run/s", "h", True)
    return Descriptor(cluster="id", name=name, key="s", gateways=[peer], ray={"pid": 7})


def test_a_descriptor_is_private_and_comes_back_as_it_was(home):
    path = descriptors.save(make_descriptor())
    assert descriptors.load("default") == make_descriptor()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["ray"] == {"pid": 7}
    assert json.loads(path.read_text())["secret"] == "s", "as all versions, and the JVM, read it"
    assert [entry.name for entry in home.iterdir()] == ["default.json"]
    descriptors.remove("default")
    descriptors.remove("default")
    assert descriptors.known() == []


def test_a_uri_resolves_to_the_default_a_named_or_an_addressed_cluster(home, monkeypatch):
    descriptors.save(make_descriptor())
    descriptors.save(make_descriptor("prod"))
    assert resolve("diskless:///a").name == "default"
    assert resolve("").name == "default"
    assert resolve("diskless://prod/a").name == "prod"
    assert resolve("prod").name == "prod"
    assert resolve("diskless://10.0.0.1:7000/a").key == "s"
    token = Keyring(cluster="id", root=bytes(32)).client("q", paths=["/q"]).token
    monkeypatch.setenv("DISKLESS_TOKEN", token)
    addressed = resolve("diskless://10.0.0.9:7000/a")
    assert (addressed.token, addressed.gateways[0].gateway) == (token, "10.0.0.9:7000")
    assert (addressed.cluster, addressed.key) == ("id", "")
    assert resolve("prod").credential.token == token
    monkeypatch.setenv("DISKLESS_TOKEN", "")
    assert resolve("prod", token=token).credential.token == token


def test_a_token_of_another_cluster_is_refused_before_anything_is_sent(home):
    descriptors.save(make_descriptor())
    token = Keyring(cluster="other", root=bytes(32)).client("q").token
    with pytest.raises(Unauthorized, match="another cluster"):
        resolve("", token=token)
    with pytest.raises(Unauthorized, match="no token of diskless") as refused:
        resolve("", token="my-password")
    assert "my-password" not in str(refused.value)


def test_a_cluster_that_is_not_known_is_refused_with_what_to_do(home):
    with pytest.raises(NoCluster, match="diskless up --name prod"):
        resolve("diskless://prod/a")
    with pytest.raises(NoCluster, match="set DISKLESS_TOKEN"):
        resolve("diskless://10.0.0.1:7000/a")
    home.mkdir()
    (home / "broken.json").write_text("{")
    with pytest.raises(NoCluster, match="cannot be read"):
        resolve("broken")
    assert descriptors.known() == []


@pytest.mark.parametrize(
    ("uri", "parsed"),
    [
        ("diskless:///a/b", ("", "/a/b")),
        ("diskless:/a/b", ("", "/a/b")),
        ("diskless://prod", ("prod", "/")),
        ("diskless://prod/a/", ("prod", "/a")),
        ("diskless://host.example:70/a", ("host.example:70", "/a")),
        ("diskless://[::1]:70/a", ("[::1]:70", "/a")),
        ("diskless:///k=a%2Fb?#/x y", ("", "/k=a%2Fb?#/x y")),
    ],
)
def test_a_uri_is_parsed_into_authority_and_path(uri, parsed):
    assert parse_uri(uri) == parsed


@pytest.mark.parametrize(
    "uri", ["", "/a", "file:///a", "diskless:a", "diskless://A_B/a", "diskless://u@h:1/a",
            "diskless:///a/../b", "diskless://:70/a"]
)  # fmt: skip
def test_a_bad_uri_is_refused_with_one_line(uri):
    with pytest.raises(BadRequest) as e:
        parse_uri(uri)
    assert "\n" not in str(e.value)
