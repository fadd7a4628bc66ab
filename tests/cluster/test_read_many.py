"""Many files in few requests: all that a plain read gives, of each file by itself."""

import os

import pytest

from diskless import local_cluster
from diskless.client.client import Client
from diskless.errors import DisklessError, Forbidden, NotFound, PathIsDirectory
from diskless.launch.local import LocalCluster

FILES = 300


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    with local_cluster() as running:
        yield running


def requests_of(cluster: LocalCluster) -> int:
    return sum(node.doors.handlers.requests for node in cluster.nodes.values())


def test_many_small_files_take_few_requests_and_come_as_they_were_written(
    cluster: LocalCluster,
) -> None:
    with cluster.connect() as store:
        files = {f"/deltas/{n}": os.urandom(100 + 61 * n) for n in range(FILES)}
        store.write_many(files)
        before = requests_of(cluster)
        assert store.read_many(reversed(list(files))) == files
        assert requests_of(cluster) - before <= 4


def test_large_empty_inline_and_packed_files_come_together(cluster: LocalCluster) -> None:
    with cluster.connect() as store:
        store.write("/mixed/inline", b"in the namespace")
        files = {"/mixed/empty": b"", "/mixed/large": os.urandom(3 << 20)}
        files |= {f"/mixed/{n}": os.urandom(60_000) for n in range(100)}  # more than one reply
        store.write_many(files)
        files["/mixed/inline"] = b"in the namespace"
        assert store.read_many(files) == files


def test_what_is_refused_is_refused_by_itself(cluster: LocalCluster) -> None:
    with cluster.connect() as store:
        store.write("/some/file", b"1")
        wanted = ["/some/file", "/some/other", "/some"]
        with pytest.raises(NotFound):
            store.read_many(wanted)
        assert store.read_many(wanted, on_error="omit") == {"/some/file": b"1"}
        found = store.read_many(wanted, on_error="return")
        assert isinstance(found["/some/other"], NotFound)
        assert isinstance(found["/some"], PathIsDirectory)
        assert store.read_many([]) == {}


def test_a_token_reads_many_of_its_own_files_and_no_others(cluster: LocalCluster) -> None:
    with cluster.connect() as store:
        store.write_many({"/mine/a": b"a" * 9000, "/theirs/a": b"b"})
    with cluster.connect(token=cluster.token("/mine", writes=False)) as bound:
        assert bound.read_many(["/mine/a"]) == {"/mine/a": b"a" * 9000}
        with pytest.raises(Forbidden):
            bound.read_many(["/mine/a", "/theirs/a"])


@pytest.mark.parametrize("down", [2, 3])
def test_with_k_agents_down_all_come_and_with_one_more_each_says_why(down: int) -> None:
    timeout_s = 60 if down == 2 else 12  # in vain
    with local_cluster() as cluster, cluster.connect(timeout_s=timeout_s) as store:
        files = {f"/d/{n}": os.urandom(20_000) for n in range(40)}
        inline = {"/d/inline": b"x"}
        store.write_many(files)
        store.write_many(inline)
        cluster.kill(*range(6 - down, 6))
        found = store.read_many(files | inline, on_error="return")
        if down == 2:
            assert found == files | inline
        else:
            assert all(
                content == files.get(path) or isinstance(content, DisklessError)
                for path, content in found.items()
                if path in files
            )
            assert any(isinstance(content, DisklessError) for content in found.values())
            assert found["/d/inline"] == b"x"


def test_a_damaged_shard_is_not_served_to_any_of_many(cluster: LocalCluster) -> None:
    with cluster.connect() as store:
        files = {f"/flip/{n}": os.urandom(20_000) for n in range(60)}
        store.write_many(files)
        for slot in (1, 4):
            cluster.run(flip(cluster, slot))
        assert read_as(store, files) == files


async def flip(cluster: LocalCluster, slot: int) -> None:
    cluster.nodes[slot].storage.shards.flip_bytes(1000, random_seed=slot)


def read_as(store: Client, files: dict[str, bytes]) -> object:
    return store.read_many(files)
