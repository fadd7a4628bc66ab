"""Memory comes back: what is deleted, replaced, sparse or never finished is reclaimed.

And nothing else is: readers of deleted files, slow uploads and full clusters keep what
they need or fail in one clear line.
"""

import random
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import IO

import pytest

from diskless.agent.shards import SHARD_OVERHEAD_BYTES
from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import AlreadyExists, CapacityExceeded, NotFound, UploadLost
from diskless.launch.local import LocalCluster
from tests.conftest import Connect, StartCluster
from tests.support import (
    BRISK,
    CALM,
    STRIPED,
    ShardAt,
    bytes_used,
    connect_to_follower,
    content,
    eventually,
    leader,
    on_loop,
    record_of,
    shards_stored,
    stripes_of,
)

M, K = 4, 2


def stripe_count(cluster: LocalCluster) -> int:
    """Stripes that the namespace knows, freed ones too."""
    replica = leader(cluster).replica
    return on_loop(cluster, lambda: len(replica.state.ledger.entries))


def live_bytes(cluster: LocalCluster) -> int:
    replica = leader(cluster).replica
    return on_loop(cluster, lambda: replica.state.bytes_logical)


def is_tight(cluster: LocalCluster) -> bool:
    """Stored bytes are at most 1.5 × (m+k)/m of the live ones, and little more."""
    overhead = SHARD_OVERHEAD_BYTES * shards_stored(cluster) + 3 * 64 * KIB
    return bytes_used(cluster) <= 1.5 * (M + K) / M * live_bytes(cluster) + overhead


# Deleting and replacing


def test_deleted_files_give_their_memory_back(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    for n in range(4):
        client.write(f"/d/{n}", content(3 * MIB, n))
    client.write_many({f"/d/small/{n}": content(20 * KIB, n) for n in range(100)})
    client.write("/keep", content(MIB))
    assert bytes_used(cluster) > 1.5 * 14 * MIB
    assert client.delete("/d", recursive=True)
    eventually(lambda: stripe_count(cluster) == 1)
    eventually(lambda: shards_stored(cluster) == M + K)
    assert bytes_used(cluster) < 1.6 * MIB
    assert client.read("/keep") == content(MIB)
    client.delete("/keep")
    eventually(lambda: bytes_used(cluster) == 0)


def test_replaced_files_give_their_memory_back(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    for version in range(12):
        client.write("/same", content(2 * MIB + 5, version), overwrite=True)
    client.write("/other", content(MIB))
    client.rename("/same", "/other", overwrite=True)
    eventually(lambda: is_tight(cluster))
    eventually(lambda: shards_stored(cluster) == 3 * (M + K))
    assert client.read("/other") == content(2 * MIB + 5, 11)


def test_nothing_is_freed_before_its_delay(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=replace(STRIPED, free_delay_s=3600.0))
    client = connect(cluster)
    client.write("/gone", content(2 * MIB))
    client.delete("/gone")
    before = shards_stored(cluster)  # a follower's records may go a beat later
    for _ in range(3):
        cluster.run(leader(cluster).leading.janitor.reap())
    assert shards_stored(cluster) == before == 2 * (M + K)


# Readers of what is gone


def test_a_reader_finishes_a_file_that_was_deleted_or_replaced_meanwhile(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=replace(STRIPED, free_delay_s=30.0))
    client = connect(cluster)
    old = content(5 * MIB, "old")
    for path in ("/deleted", "/replaced", "/moved"):
        client.write(path, old)
    with (
        client.open("/deleted") as deleted,
        client.open("/replaced") as replaced,
        client.open("/moved") as moved,
    ):
        start_of = [file.read(100_000) for file in (deleted, replaced, moved)]
        client.delete("/deleted")
        client.write("/replaced", content(5 * MIB, "new"), overwrite=True)
        client.rename("/moved", "/elsewhere")
        for first, file in zip(start_of, (deleted, replaced, moved), strict=True):
            assert first + file.read() == old
    assert client.read("/replaced") == content(5 * MIB, "new")
    with pytest.raises(NotFound):
        client.read("/deleted")


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_reader_that_comes_too_late_gets_not_found_and_never_other_bytes(
    start: StartCluster, connect: Connect, how: str
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    old = content(6 * MIB, "old")
    client.write("/file", old)
    with client.open("/file") as file:
        assert file.read(MIB) == old[:MIB]
        freed = {stripe.id for stripe in stripes_of(cluster, "/file")}
        client.delete("/file")
        if how == "replaced":
            client.write("/file", content(6 * MIB, "new"))
        known = leader(cluster).replica.state.ledger.entries
        eventually(lambda: not on_loop(cluster, lambda: freed & known.keys()))
        with pytest.raises(NotFound):
            _read_on(file, old[MIB:])


def _read_on(file: IO[bytes], expected: bytes) -> None:
    """What was read ahead may still come; it is checked."""
    at = 0
    while more := file.read(MIB):
        assert more == expected[at : at + len(more)]
        at += len(more)


def test_readers_during_churn_see_one_version_or_none(
    start: StartCluster, connect: Connect
) -> None:
    """With next to no delay of freeing, so that many readers do come too late."""
    cluster = start(tuning=replace(STRIPED, free_delay_s=0.01, janitor_interval_s=0.02))
    writer = connect(cluster)
    versions = {version: content(2 * MIB + version, version) for version in range(40)}
    writer.write("/file", versions[0])
    done = threading.Event()
    problems: list[str] = []
    outcomes: list[str] = []

    def read(client: Client) -> None:
        while not done.is_set():
            try:
                with client.open("/file") as file:
                    data = file.read()
            except NotFound:
                outcomes.append("late")
                continue
            if data != versions.get(len(data) - 2 * MIB):
                problems.append(f"{len(data)} bytes of no version")
            outcomes.append("read")

    readers = [threading.Thread(target=read, args=(connect(cluster),)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 40):
        writer.write("/file", versions[version], overwrite=True)
    done.set()
    for reader in readers:
        reader.join()
    assert not problems
    assert "read" in outcomes


# Packing


def test_half_dead_stripes_are_repacked(start: StartCluster, connect: Connect) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    files = {f"/{n:03}": content(20 * KIB, n) for n in range(200)}  # four stripes
    client.write_many(files)
    before = {stripe.id for path in files for stripe in stripes_of(cluster, path)}
    assert len(before) == 4
    kept = {path: data for n, (path, data) in enumerate(files.items()) if n % 4 == 0}
    for path in files.keys() - kept.keys():
        client.delete(path)
    eventually(lambda: not before & {s.id for p in kept for s in stripes_of(cluster, p)})
    eventually(lambda: is_tight(cluster))
    assert {path: client.read(path) for path in kept} == kept


def test_a_sparse_stripe_that_is_lost_does_not_keep_others_from_being_repacked(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    files = {f"/{n:03}": content(20 * KIB, n) for n in range(100)}  # two stripes
    client.write_many(files)
    lost, sparse = dict.fromkeys(s.id for p in files for s in stripes_of(cluster, p))
    of = {path: [stripe.id for stripe in stripes_of(cluster, path)] for path in files}
    kept = {
        path: data
        for n, (path, data) in enumerate(files.items())
        if of[path] in ([lost], [sparse]) and n % (10 if of[path] == [lost] else 5) == 0
    }
    (damaged,) = {s for p in kept for s in stripes_of(cluster, p) if s.id == lost}
    for index in range(K + 1):
        on_loop(cluster, lambda i=index: ShardAt(cluster, damaged, i)).flip(7)
    for path in files.keys() - kept.keys():
        client.delete(path)
    left = {path: data for path, data in kept.items() if of[path] == [sparse]}
    assert len(left) > 5
    eventually(lambda: sparse not in {s.id for p in left for s in stripes_of(cluster, p)})
    assert {path: client.read(path) for path in left} == left


def test_a_stripe_that_was_sparse_from_the_start_is_repacked(
    start: StartCluster, connect: Connect
) -> None:
    """Puts that gathered in one stripe, of which most were refused."""
    cluster = start(tuning=STRIPED)
    clients = [connect(cluster) for _ in range(12)]
    clients[0].write("/taken", content(60 * KIB))
    together = threading.Barrier(len(clients))

    def write(client: Client, path: str) -> None:
        together.wait()
        try:
            client.write(path, content(60 * KIB))
        except AlreadyExists:
            assert path == "/taken"

    for turn in range(4):
        threads = [
            threading.Thread(target=write, args=(client, "/taken" if n % 6 else f"/{turn}-{n}"))
            for n, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    eventually(lambda: is_tight(cluster))
    for path in ("/taken", *(f"/{turn}-{n}" for turn in range(4) for n in (0, 6))):
        assert clients[0].read(path) == content(60 * KIB)


def test_repacking_leaves_files_that_change_meanwhile_alone(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=CALM)
    client = connect(cluster)
    files = {f"/{n:02}": content(20 * KIB, n) for n in range(50)}
    client.write_many(files)
    kept = [f"/{n:02}" for n in range(0, 50, 5)]
    for path in files.keys() - set(kept):
        client.delete(path)
    moving = threading.Thread(
        target=lambda: [cluster.run(leader(cluster).leading.janitor.repack()) for _ in range(50)]
    )
    moving.start()
    for turn in range(50):
        path = kept[turn % len(kept)]
        files[path] = content(20 * KIB, ("new", turn))
        client.write(path, files[path], overwrite=True)
        if turn % 10 == 0:
            client.rename(path, path + "-moved")
            files[path + "-moved"] = files.pop(path)
            kept[turn % len(kept)] = path + "-moved"
    moving.join()
    assert {path: client.read(path) for path in kept} == {path: files[path] for path in kept}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_after_churn_stored_bytes_stay_within_bounds(
    start: StartCluster, connect: Connect, seed: int
) -> None:
    """Overwrites and deletes at random, all kinds of sizes; every file reads right throughout."""
    cluster = start(tuning=BRISK)
    client = connect(cluster)
    chance = random.Random(seed)
    files: dict[str, bytes] = {}
    sizes = [0, 100, 3 * KIB, 10 * KIB, 20 * KIB, 60 * KIB, 100 * KIB, 700 * KIB, 2 * MIB + 17]
    for turn in range(400):
        paths = [f"/{chance.randrange(60)}" for _ in range(chance.choice([1, 1, 1, 8]))]
        if chance.random() < 0.25:
            for path in paths:
                assert client.delete(path) == (files.pop(path, None) is not None)
        else:
            new = {path: content(chance.choice(sizes), (turn, path)) for path in paths}
            client.write_many(new, overwrite=True)
            files |= new
        if files and turn % 5 == 0:
            path = chance.choice(list(files))
            assert client.read(path) == files[path], f"seed {seed}, turn {turn}, {path}"
    eventually(lambda: is_tight(cluster))
    for path, data in files.items():
        assert client.read(path) == data, f"seed {seed}, {path}"
    client.delete("/", recursive=True)
    eventually(lambda: bytes_used(cluster) == 0)


# Demotion


def test_larger_inline_files_move_into_stripes_and_small_ones_stay(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=replace(BRISK, janitor_interval_s=3600.0))
    client = connect(cluster)
    small = {f"/small/{size}": content(size) for size in (0, 1, 100, 4 * KIB)}
    larger = {f"/larger/{n}": content(5 * KIB + n) for n in range(10)}
    for path, data in (small | larger).items():
        client.write(path, data)
        assert record_of(cluster, path).inline == data

    def demoted() -> bool:
        cluster.run(leader(cluster).leading.janitor.demote())
        return all(record_of(cluster, path).inline is None for path in larger)

    eventually(demoted)
    assert all(record_of(cluster, path).inline is not None for path in small)
    assert {path: client.read(path) for path in small | larger} == small | larger
    state = leader(cluster).replica.state
    assert state.bytes_inline == sum(len(data) for data in small.values())


def test_inline_bytes_are_capped(start: StartCluster, connect: Connect) -> None:
    """Above a tenth of an agent's memory small files take the stripe path."""
    cluster = start(tuning=replace(CALM, inline_bytes_max=64 * KIB), memory="16MiB")
    client = connect(cluster)
    for n in range(60):
        client.write(f"/{n}", content(60 * KIB, n))
        leader(cluster).roster.inline_room = None  # as good as the next beat
        on_loop(cluster, leader(cluster).leading.monitor.publish)
        eventually(lambda: leader(cluster).roster.inline_room is not None)
    assert leader(cluster).replica.state.bytes_inline <= 1.7 * MIB
    assert record_of(cluster, "/59").inline is None
    for n in range(60):
        assert client.read(f"/{n}") == content(60 * KIB, n)


# What was never finished


def test_shards_of_an_upload_that_was_given_up_are_dropped(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    client.write("/keep", content(MIB))
    file = client.open("/never", "wb")
    file.write(content(5 * MIB))
    eventually(lambda: shards_stored(cluster) >= 4 * (M + K))
    file.discard()  # type: ignore[attr-defined]
    eventually(lambda: shards_stored(cluster) == M + K)
    assert not client.exists("/never")
    assert client.read("/keep") == content(MIB)


def test_shards_of_an_upload_whose_client_vanished_are_fenced_and_dropped(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    file = client.open("/late", "wb")
    file.write(content(5 * MIB))
    eventually(lambda: shards_stored(cluster) >= 4 * (M + K))
    _lose_connection(file)
    eventually(lambda: shards_stored(cluster) == 0)
    assert not client.exists("/late")
    file.close()  # it was told of no sealed stripe, so it has all the bytes still
    assert client.read("/late") == content(5 * MIB)


def test_an_upload_whose_client_is_there_but_silent_is_never_dropped(
    start: StartCluster, connect: Connect
) -> None:
    """A changelog may stay open, without a word, for as long as a micro-batch takes."""
    cluster = start(tuning=replace(STRIPED, orphan_delay_s=0.3))
    client = connect(cluster)
    file = client.open("/slow", "wb")
    for n in range(20):
        file.write(content(MIB, n))
    started_s = time.monotonic()
    eventually(lambda: time.monotonic() > started_s + 1.5)
    file.close()
    assert client.read("/slow") == b"".join(content(MIB, n) for n in range(20))


def test_shards_of_an_upload_whose_agent_restarted_are_fenced_and_dropped(
    start: StartCluster, connect: Connect
) -> None:
    """Its client, which has all the bytes still, then writes them anew."""
    cluster = start(agents=7, tuning=STRIPED)
    client, gateway = connect_to_follower(cluster, connect)
    file = client.open("/never-yet", "wb")
    file.write(content(5 * MIB))
    eventually(lambda: shards_stored(cluster) >= 4 * (M + K))
    cluster.kill(gateway)
    cluster.revive(gateway)
    eventually(lambda: shards_stored(cluster) == 0)
    file.close()
    assert client.read("/never-yet") == content(5 * MIB)


def test_a_commit_of_a_fenced_stripe_is_refused(start: StartCluster, connect: Connect) -> None:
    """The upload is forgotten, its client comes with the sealed stripes to another agent."""
    cluster = start(agents=7, tuning=replace(STRIPED, orphan_delay_s=0.4))
    client, gateway = connect_to_follower(cluster, connect)
    file = client.open("/late", "wb")
    for n in range(20):  # more than a client keeps: it was told of sealed stripes
        file.write(content(MIB, n))
    _lose_connection(file)
    eventually(lambda: shards_stored(cluster) == 0)
    cluster.kill(gateway)
    with pytest.raises(UploadLost):
        file.close()
    assert not client.exists("/late")


def test_a_slow_upload_is_never_dropped(start: StartCluster, connect: Connect) -> None:
    """It lasts three times as long as the delay after which unknown stripes are examined."""
    cluster = start(tuning=STRIPED)
    client = connect(cluster)
    data = content(16 * MIB)
    with client.open("/slow", "wb") as file:
        for at in range(0, len(data), MIB):
            file.write(data[at : at + MIB])
            _pass_time(cluster, 0.2)
        # That something was examined, and that the janitor was at work.
        eventually(lambda: leader(cluster).storage.shards.unconfirmed(age_s=2.0, limit=1))
        eventually(lambda: leader(cluster).replica.state.ledger.fences)
    assert client.read("/slow") == data


def test_a_slow_upload_survives_the_restart_of_its_agent(
    start: StartCluster, connect: Connect
) -> None:
    """The agent that takes it over holds the stripes that the dead one had sealed."""
    cluster = start(agents=7, tuning=STRIPED)
    client, gateway = connect_to_follower(cluster, connect)
    data = content(30 * MIB)
    with client.open("/slow", "wb") as file:
        file.write(data[: 14 * MIB])
        cluster.kill(gateway)
        cluster.revive(gateway)
        for at in range(14 * MIB, len(data), MIB):
            file.write(data[at : at + MIB])
            _pass_time(cluster, 0.15)
    assert client.read("/slow") == data


def _pass_time(cluster: LocalCluster, seconds: float) -> None:
    """Waits for the agents' clock: what is under test is that time passes."""
    now_s = leader(cluster).storage.shards._now_s
    end_s = now_s() + seconds
    eventually(lambda: now_s() >= end_s)


# Full


FULL = re.compile(r"\d of 6 agents are full .*: delete files, or .*")  # in one line


def fill(client: Client, *, size: int) -> list[str]:
    """Writes files until there is no room; returns those that were taken."""
    paths: list[str] = []
    refusal = ""
    while not refusal:
        path = f"/{size}/{len(paths)}"
        try:
            client.write(path, content(size, path))
        except CapacityExceeded as error:
            refusal = str(error)
        else:
            paths.append(path)
    assert FULL.fullmatch(refusal)
    return paths


@pytest.mark.parametrize("size", [300 * KIB, MIB, 5 * MIB], ids=["part", "stripe", "several"])
def test_a_full_cluster_refuses_loses_nothing_and_accepts_again_after_deletes(
    start: StartCluster, connect: Connect, size: int
) -> None:
    cluster = start(memory="16MiB", tuning=STRIPED)
    client = connect(cluster)
    paths = fill(client, size=size)
    room = 16 * MIB * 6
    assert 1.5 * size * len(paths) > 0.85 * room - 2 * 1.5 * 5 * MIB  # it was really full
    for node in cluster.nodes.values():
        assert node.memory.lasting <= node.memory.bytes_max
        eventually(lambda node=node: node.memory.used <= node.memory.bytes_max)  # what passes, did
    refused = f"/{size}/{len(paths)}"
    assert not client.exists(refused)
    for path in paths:
        assert client.read(path) == content(size, path)
    for path in paths[: len(paths) // 2]:
        client.delete(path)
    eventually(lambda: _accepts(client, refused, content(size)))
    assert client.read(refused) == content(size)
    for path in paths[len(paths) // 2 :]:
        assert client.read(path) == content(size, path)


def test_an_overwrite_refused_for_lack_of_room_leaves_the_old_file(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(memory="16MiB", tuning=STRIPED)
    client = connect(cluster)
    paths = fill(client, size=5 * MIB)
    with pytest.raises(CapacityExceeded):
        client.write(paths[0], content(20 * MIB), overwrite=True)
    with pytest.raises(CapacityExceeded):
        client.write_many({paths[0]: b"small", "/new": content(20 * MIB)}, overwrite=True)
    assert client.read(paths[0]) == content(5 * MIB, paths[0])
    assert not client.exists("/new")


def test_a_cluster_full_of_half_dead_stripes_makes_room(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(memory="16MiB", tuning=STRIPED)
    client = connect(cluster)
    stripes = 0
    with suppress(CapacityExceeded):
        for stripes in range(1000):
            keep, drop = content(480 * KIB, stripes), content(520 * KIB, stripes)
            client.write_many({f"/{stripes}/keep": keep, f"/{stripes}/drop": drop})
    for size in (200 * KIB, 20 * KIB, 2 * KIB):  # to the last corner
        fill(client, size=size)
    for stripe in range(stripes):
        client.delete(f"/{stripe}/drop")
    eventually(lambda: _accepts(client, "/new", content(MIB)))


def _lose_connection(file: IO[bytes]) -> None:
    """As if the network between the client and its agent had gone."""
    file._upload._connection.close()


def _accepts(client: Client, path: str, data: bytes) -> bool:
    try:
        client.write(path, data)
    except CapacityExceeded:
        return False
    return True
