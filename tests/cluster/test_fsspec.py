"""The fsspec file system: fsspec's own suites, what we promise beyond them, and real users.

One cluster serves the whole module; every test has a directory of its own.
"""

import gc
import gzip
import importlib.metadata
import io
import itertools
import json
import os
import pickle
import random
import secrets
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import fsspec.tests.abstract as abstract
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
from fsspec.core import url_to_fs

import diskless
from diskless.client.fsspec import DisklessFileSystem
from diskless.client.fsspec_files import SPOOL_BYTES_MAX
from diskless.config import MIB, ClusterSettings
from diskless.errors import (
    AlreadyExists,
    BadRequest,
    DirectoryNotEmpty,
    DisklessError,
    NoCluster,
    NotFound,
    PathIsDirectory,
    PathIsFile,
)
from diskless.launch.local import CALL_TIMEOUT_S, LocalCluster

ENTRY_POINT = "diskless.client.fsspec:DisklessFileSystem"
CHILD_TIMEOUT_S = 30.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with diskless.local_cluster() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    """The package's metadata registers the class; a bare checkout has none."""
    if not importlib.metadata.entry_points(group="fsspec.specs", name="diskless"):
        fsspec.register_implementation("diskless", DisklessFileSystem, clobber=True)


@pytest.fixture
def fs(cluster: LocalCluster) -> DisklessFileSystem:
    return fsspec.filesystem("diskless", cluster=cluster.settings.name)


@pytest.fixture
def root(fs: DisklessFileSystem) -> str:
    path = f"/test-{next(_numbers)}"
    fs.mkdir(path)
    return path


@pytest.fixture
def url(cluster: LocalCluster, root: str) -> str:
    return f"diskless://{cluster.settings.name}{root}"


# fsspec's own suites.


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, cluster: LocalCluster) -> DisklessFileSystem:
        return fsspec.filesystem("diskless", cluster=cluster.settings.name)

    @pytest.fixture
    def fs_path(self, root: str) -> str:
        return root

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)


class TestCopySuite(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGetSuite(abstract.AbstractGetTests, Fixtures):
    pass


class TestPutSuite(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpenSuite(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipeSuite(abstract.AbstractPipeTests, Fixtures):
    pass


def test_every_suite_that_fsspec_has_is_run_here() -> None:
    suites = {
        value
        for name, value in vars(abstract).items()
        if name.startswith("Abstract") and name.endswith("Tests")
    }
    ours = {base for value in globals().values() if isinstance(value, type) for base in value.mro()}
    assert suites
    assert suites <= ours


# Finding the class and the cluster.


def test_the_entry_point_is_declared_and_loads_the_class() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"]["fsspec.specs"]["diskless"]
    installed = importlib.metadata.entry_points(group="fsspec.specs", name="diskless")
    found = {point.value for point in installed} | {declared}
    assert found == {ENTRY_POINT}
    point = importlib.metadata.EntryPoint("diskless", declared, "fsspec.specs")
    assert point.load() is DisklessFileSystem
    assert fsspec.get_filesystem_class("diskless") is DisklessFileSystem


def test_a_urls_authority_names_the_cluster(cluster: LocalCluster) -> None:
    name = cluster.settings.name
    fs, path = url_to_fs(f"diskless://{name}/a/b")
    assert (fs.cluster, path) == (name, "/a/b")
    assert fs is fsspec.filesystem("diskless", cluster=name)
    assert url_to_fs("diskless:///a")[0].cluster == ""
    assert url_to_fs(f"diskless://{name}/a", cluster=name)[0] is fs
    with pytest.raises(TypeError):
        url_to_fs(f"diskless://{name}/a", cluster="another")


def test_a_gateways_address_is_as_good_as_the_name(cluster: LocalCluster, root: str) -> None:
    address = cluster.nodes[3].gateway_address
    with fsspec.open(f"diskless://{address}{root}/a", "wb") as file:
        file.write(b"by address")
    fs = fsspec.filesystem("diskless", cluster=cluster.uri)
    assert fs.cluster == cluster.settings.name
    assert fs.cat_file(f"{root}/a") == b"by address"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("diskless://name/a/b", "/a/b"),
        ("diskless://host:7000/a/b/", "/a/b"),
        ("diskless:///a//b", "/a/b"),
        ("diskless:/a/b", "/a/b"),
        ("diskless://name", "/"),
        ("diskless://", "/"),
        ("a/b", "/a/b"),
        ("", "/"),
        ("/", "/"),
        (Path("/a/b"), "/a/b"),
        ("/a=1%20/b*", "/a=1%20/b*"),
        (["diskless://name/a", "b"], ["/a", "/b"]),
    ],
)
def test_paths_lose_their_protocol_and_cluster(given: Any, path: Any) -> None:
    assert DisklessFileSystem._strip_protocol(given) == path


def test_a_path_with_its_protocol_again_leads_to_the_same_file(
    fs: DisklessFileSystem, root: str
) -> None:
    fs.pipe_file(f"{root}/a", b"1")
    again, path = url_to_fs(fs.unstrip_protocol(f"{root}/a"))
    assert again.cat_file(path) == b"1"
    assert fs.unstrip_protocol(fs.unstrip_protocol("/x")) == f"diskless://{fs.cluster}/x"
    assert DisklessFileSystem(cluster="").unstrip_protocol("/x") == "diskless:///x"


def test_instances_are_made_without_a_cluster_and_fail_at_their_first_use() -> None:
    fs = fsspec.filesystem("diskless", cluster="never-started")
    with pytest.raises(NoCluster, match="never-started"):
        fs.exists("/a")


def test_an_instance_follows_its_name_to_a_new_cluster() -> None:
    settings = ClusterSettings(name=f"again-{secrets.token_hex(4)}", agents=3)
    settings = replace(settings, data_shards=2, parity_shards=1, memory_bytes=64 * MIB)
    fs = fsspec.filesystem("diskless", cluster=settings.name)
    with LocalCluster(settings):
        fs.pipe_file("/a", b"first life")
    fs._resolve_at = 0.0  # As if a second had passed.
    with pytest.raises(NoCluster):
        fs.exists("/a")
    with LocalCluster(settings):
        assert not fs.exists("/a")


def test_a_client_of_a_cluster_that_was_replaced_is_told_so_at_once() -> None:
    settings = ClusterSettings(name=f"again-{secrets.token_hex(4)}", agents=3)
    settings = replace(settings, data_shards=2, parity_shards=1, memory_bytes=64 * MIB)
    with LocalCluster(settings) as first:
        client = first.connect()
        client.write("/a", b"first life")
    with LocalCluster(settings) as second, client:
        began = time.monotonic()
        with pytest.raises(NoCluster, match=f"was replaced.*{second.cluster_id}"):
            client.read("/a")
        assert time.monotonic() - began < CALL_TIMEOUT_S / 10


# Directories and listings.


def test_a_file_lists_itself_and_what_is_missing_is_not_found(
    fs: DisklessFileSystem, root: str
) -> None:
    fs.pipe_file(f"{root}/a", b"123")
    assert fs.ls(f"{root}/a", detail=False) == [f"{root}/a"]
    assert fs.ls(root) == [fs.info(f"{root}/a")]
    for ask in (fs.ls, fs.info, fs.rm, fs.rm_file, fs.rmdir, fs.cat_file, fs.open, fs.modified):
        with pytest.raises(FileNotFoundError):
            ask(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{root}/none", recursive=True)


def test_info_tells_content_apart(fs: DisklessFileSystem, root: str) -> None:
    before = datetime.now(tz=UTC) - timedelta(seconds=1)
    path = f"{root}/a"
    fs.pipe_file(path, b"one")
    first, first_key, first_sum = fs.info(path), fs.ukey(path), fs.checksum(path)
    assert first["name"] == path
    assert (first["size"], first["type"]) == (3, "file")
    assert before <= fs.modified(path) == fs.created(path) <= datetime.now(tz=UTC)
    assert (fs.ukey(path), fs.checksum(path)) == (first_key, first_sum)
    fs.pipe_file(path, b"two")
    assert fs.info(path)["id"] != first["id"]
    assert fs.info(path)["checksum"] != first["checksum"]
    assert fs.ukey(path) != first_key
    assert fs.checksum(path) != first_sum
    assert fs.info(root)["type"] == "directory"
    with pytest.raises(PathIsDirectory):
        fs.created(root)
    with pytest.raises(NotImplementedError):
        fs.sign(path)


def test_directories_are_real(fs: DisklessFileSystem, root: str) -> None:
    fs.mkdir(f"{root}/a/b")
    assert fs.isdir(f"{root}/a")
    assert fs.ls(f"{root}/a/b") == []
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{root}/a/b")
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{root}/a/b")
    fs.makedirs(f"{root}/a/b", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{root}/x/y", create_parents=False)
    assert not fs.exists(f"{root}/x")
    fs.mkdir(f"{root}/x", create_parents=False)
    fs.touch(f"{root}/a/b/file")
    with pytest.raises(DirectoryNotEmpty):
        fs.rmdir(f"{root}/a")
    with pytest.raises(PathIsFile):
        fs.rmdir(f"{root}/a/b/file")
    with pytest.raises(PathIsFile):
        fs.mkdir(f"{root}/a/b/file/below", create_parents=False)
    with pytest.raises(AlreadyExists):
        fs.makedirs(f"{root}/a/b/file", exist_ok=True)
    fs.rm(f"{root}/a/b/file")
    fs.rmdir(f"{root}/a/b")
    assert fs.ls(f"{root}/a") == []


@pytest.fixture
def tree(fs: DisklessFileSystem, root: str) -> str:
    fs.pipe({f"{root}/{name}": name.encode() for name in ("1.csv", "2.txt", "a/3.csv", "a/b/4")})
    fs.mkdir(f"{root}/empty")
    return root


def test_walk_find_glob_and_du_agree(fs: DisklessFileSystem, tree: str) -> None:
    def under(*names: str) -> list[str]:
        return [f"{tree}/{name}" for name in names]

    assert fs.find(tree) == under("1.csv", "2.txt", "a/3.csv", "a/b/4")
    assert fs.find(tree, maxdepth=1) == under("1.csv", "2.txt")
    assert fs.find(tree, maxdepth=2) == under("1.csv", "2.txt", "a/3.csv")
    everything = fs.find(tree, withdirs=True, detail=True)
    assert list(everything) == [
        tree,
        *under("1.csv", "2.txt", "a", "a/3.csv", "a/b", "a/b/4", "empty"),
    ]
    assert everything == {path: fs.info(path) for path in everything}
    assert fs.find(f"{tree}/1.csv") == under("1.csv")
    assert fs.find(f"{tree}/none") == []
    walked = {path: (sorted(dirs), sorted(files)) for path, dirs, files in fs.walk(tree)}
    assert walked == {
        tree: (["a", "empty"], ["1.csv", "2.txt"]),
        f"{tree}/a": (["b"], ["3.csv"]),
        f"{tree}/a/b": ([], ["4"]),
        f"{tree}/empty": ([], []),
    }
    assert fs.glob(f"{tree}/*.csv") == under("1.csv")
    assert fs.glob(f"{tree}/**/*.csv") == under("1.csv", "a/3.csv")
    assert fs.glob(f"{tree}/*/") == under("a", "empty")
    assert fs.glob(f"{tree}/[13].csv") == under("1.csv")
    assert fs.glob(f"{tree}/none*") == []
    assert fs.du(tree) == len("1.csv2.txta/3.csva/b/4")
    assert fs.du(tree, maxdepth=1) == len("1.csv2.txt")
    assert fs.du(tree, total=False)[f"{tree}/a/b/4"] == len("a/b/4")


def test_find_lists_thousands_of_files_page_by_page(fs: DisklessFileSystem, root: str) -> None:
    names = [f"{root}/many/{number:05}" for number in range(2500)]
    fs.pipe(dict.fromkeys(names, b""))
    assert fs.find(root) == names
    assert len(fs.ls(f"{root}/many")) == len(names)


def test_rm_takes_a_tree_a_list_or_a_pattern(fs: DisklessFileSystem, tree: str) -> None:
    with pytest.raises(PathIsDirectory):
        fs.rm(f"{tree}/a")
    with pytest.raises(PathIsDirectory):
        fs.rm_file(f"{tree}/empty")
    fs.rm(f"{tree}/*.csv")
    assert fs.find(tree) == [f"{tree}/2.txt", f"{tree}/a/3.csv", f"{tree}/a/b/4"]
    fs.rm([f"{tree}/2.txt", f"{tree}/a"], recursive=True)
    assert fs.ls(tree, detail=False) == [f"{tree}/empty"]
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{tree}/*.csv")


def test_rm_up_to_a_depth_spares_what_lies_deeper(fs: DisklessFileSystem, tree: str) -> None:
    fs.rm(f"{tree}/a", recursive=True, maxdepth=1)
    assert fs.find(tree) == [f"{tree}/1.csv", f"{tree}/2.txt", f"{tree}/a/b/4"]
    fs.rm(f"{tree}/**", recursive=True)
    assert fs.find(tree) == []


def test_a_path_that_looks_like_a_pattern_can_be_removed_and_moved(
    fs: DisklessFileSystem, root: str
) -> None:
    fs.pipe({f"{root}/a[1]": b"this", f"{root}/a1": b"not this"})
    fs.mv(f"{root}/a[1]", f"{root}/b[1]")
    assert fs.ls(root, detail=False) == [f"{root}/a1", f"{root}/b[1]"]
    fs.rm(f"{root}/b[1]")
    assert fs.ls(root, detail=False) == [f"{root}/a1"]


# Moving and copying.


def test_mv_moves_files_and_trees_in_one_step(fs: DisklessFileSystem, tree: str) -> None:
    content = fs.info(f"{tree}/a/b/4")
    fs.mv(f"{tree}/a", f"{tree}/new/parents/a")
    moved = fs.info(f"{tree}/new/parents/a/b/4")
    assert moved == content | {"name": moved["name"]}
    assert not fs.exists(f"{tree}/a")
    fs.mv(f"{tree}/1.csv", f"{tree}/2.txt")
    assert fs.cat_file(f"{tree}/2.txt") == b"1.csv"
    fs.mv(f"{tree}/2.txt", f"{tree}/empty")
    fs.mv(f"{tree}/new/", f"{tree}/empty/", recursive=True)
    assert fs.ls(f"{tree}/empty", detail=False) == [f"{tree}/empty/2.txt", f"{tree}/empty/new"]
    fs.mv(f"{tree}/empty", f"{tree}/empty")
    fs.mv(f"{tree}/empty/2.txt", f"{tree}/empty")
    assert fs.isfile(f"{tree}/empty/2.txt")
    with pytest.raises(BadRequest):
        fs.mv(f"{tree}/empty", f"{tree}/empty/new")
    for recursive in (False, True):
        with pytest.raises(FileNotFoundError):
            fs.mv(f"{tree}/none", f"{tree}/x/y", recursive=recursive)
    assert not fs.exists(f"{tree}/x")


def test_mv_takes_a_pattern_or_lists(fs: DisklessFileSystem, tree: str) -> None:
    fs.mv(f"{tree}/*.csv", f"{tree}/empty")
    assert fs.find(f"{tree}/empty") == [f"{tree}/empty/1.csv"]
    fs.mv([f"{tree}/2.txt", f"{tree}/empty/1.csv"], [f"{tree}/x", f"{tree}/y"])
    assert fs.cat([f"{tree}/x", f"{tree}/y"]) == {f"{tree}/x": b"2.txt", f"{tree}/y": b"1.csv"}


def test_a_copy_has_the_same_content_and_replaces(fs: DisklessFileSystem, root: str) -> None:
    data = random.Random(1).randbytes(5 * MIB + 7)
    fs.pipe({f"{root}/a": data, f"{root}/b": b"old"})
    fs.copy(f"{root}/a", f"{root}/b")
    assert fs.cat_file(f"{root}/b") == data
    assert fs.info(f"{root}/b")["checksum"] == fs.info(f"{root}/a")["checksum"]


# Content.


@pytest.mark.parametrize("start", [None, 0, 3, 9, 10, 99, -1, -4, -99])
@pytest.mark.parametrize("end", [None, 0, 3, 9, 10, 99, -1, -4, -99])
def test_cat_file_cuts_like_a_slice(
    fs: DisklessFileSystem, root: str, start: int | None, end: int | None
) -> None:
    data = b"0123456789"
    fs.pipe_file(f"{root}/a", data)
    assert fs.cat_file(f"{root}/a", start=start, end=end) == data[start:end]


def test_cat_ranges_returns_what_failed_in_its_place(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe({f"{root}/a": b"0123456789", f"{root}/b": b"abc"})
    paths = [f"{root}/a", f"{root}/none", f"{root}/b", f"{root}/a"]
    first, missing, second, third = fs.cat_ranges(paths, [2, 0, 1, -3], [4, 1, 9, None])
    assert (first, second, third) == (b"23", b"bc", b"789")
    assert isinstance(missing, FileNotFoundError)


def test_a_recursive_cat_gives_all_files_and_no_directories(
    fs: DisklessFileSystem, tree: str
) -> None:
    fs.pipe_file(f"{tree}/a/b/5[6]", b"a/b/5[6]")
    contents = {f"{tree}/{name}": name.encode() for name in ("a/3.csv", "a/b/4", "a/b/5[6]")}
    assert fs.cat(f"{tree}/a", recursive=True) == contents
    assert fs.cat([f"{tree}/a", f"{tree}/empty"], recursive=True) == contents
    assert fs.cat(f"{tree}/empty", recursive=True) == {}
    assert fs.cat(f"{tree}/1.csv") == b"1.csv"
    assert fs.cat(f"{tree}/?.csv") == {f"{tree}/1.csv": b"1.csv"}
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{tree}/none", recursive=True)


def test_several_files_are_piped_in_one_step_or_not_at_all(
    fs: DisklessFileSystem, root: str
) -> None:
    fs.mkdir(f"{root}/taken")
    with pytest.raises(PathIsDirectory):
        fs.pipe({f"{root}/a": b"1", f"{root}/taken": b"2", f"{root}/c": b"3"})
    assert fs.find(root) == []
    fs.pipe({f"{root}/a": b"1", f"{root}/b": bytearray(b"2"), f"{root}/c": memoryview(b"3")})
    assert fs.cat(root, recursive=True) == {
        f"{root}/{x}": y for x, y in zip("abc", (b"1", b"2", b"3"), strict=True)
    }
    with pytest.raises(FileExistsError):
        fs.pipe({f"{root}/a": b"9", f"{root}/d": b"9"}, mode="create")
    assert fs.cat_file(f"{root}/a") == b"1"
    assert not fs.exists(f"{root}/d")
    fs.pipe({})


def test_put_file_that_must_create_does_not_replace(
    fs: DisklessFileSystem, root: str, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"new")
    fs.put_file(str(local), f"{root}/a", mode="create")
    local.write_bytes(b"newer")
    with pytest.raises(FileExistsError):
        fs.put_file(str(local), f"{root}/a", mode="create")
    assert fs.cat_file(f"{root}/a") == b"new"
    fs.put_file(str(local), f"{root}/a")
    assert fs.cat_file(f"{root}/a") == b"newer"


def test_exclusive_creation_loses_to_a_file_that_came_meanwhile(
    fs: DisklessFileSystem, root: str
) -> None:
    file = fs.open(f"{root}/a", "xb")
    file.write(b"late")
    fs.pipe_file(f"{root}/a", b"early")
    with pytest.raises(FileExistsError):
        file.close()
    assert file.closed
    assert fs.cat_file(f"{root}/a") == b"early"


def test_append_goes_on_where_the_file_ended(fs: DisklessFileSystem, root: str) -> None:
    with fs.open(f"{root}/a", "ab") as file:
        file.write(b"1")
    with fs.open(f"{root}/a", "ab") as file:
        assert file.tell() == 1
        file.write(b"2")
    with fs.open(f"{root}/a", "a") as file:
        file.write("3")
    assert fs.cat_file(f"{root}/a") == b"123"


@pytest.mark.parametrize("mode", ["r+b", "w+b", "z"])
def test_other_modes_are_refused(fs: DisklessFileSystem, root: str, mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        fs.open(f"{root}/a", mode)


def test_touch_makes_or_empties_but_cannot_only_change_the_time(
    fs: DisklessFileSystem, root: str
) -> None:
    fs.touch(f"{root}/a", truncate=False)
    assert fs.cat_file(f"{root}/a") == b""
    fs.pipe_file(f"{root}/a", b"1")
    with pytest.raises(NotImplementedError):
        fs.touch(f"{root}/a", truncate=False)
    assert fs.cat_file(f"{root}/a") == b"1"
    fs.touch(f"{root}/a")
    assert fs.size(f"{root}/a") == 0


def test_a_large_file_is_streamed_and_read_at_random(fs: DisklessFileSystem, root: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    data = dice.randbytes(20 * MIB + 12345)
    with fs.open(f"{root}/big", "wb") as file:
        position = 0
        while position < len(data):
            step = dice.choice([1, 1000, 70_000, 3 * MIB])
            file.write(data[position : position + step])
            position = min(position + step, len(data))
            assert file.tell() == position
            assert not file.seekable()
    with fs.open(f"{root}/big") as file:
        assert file.size == file.info()["size"] == len(data)
        for _ in range(200):
            start = dice.randrange(len(data))
            count = dice.choice([1, 10, 20_000, 300_000])
            assert file.seek(start) == start
            assert file.read(count) == data[start : start + count]
            assert file.tell() == min(start + count, len(data))
        assert file.seek(-10, io.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:]
        file.seek(0)
        assert file.read() == data
    assert fs.cat_file(f"{root}/big", start=-MIB) == data[-MIB:]
    assert fs.tail(f"{root}/big", 100) == data[-100:]


def test_lines_and_blocks(fs: DisklessFileSystem, root: str) -> None:
    fs.write_text(f"{root}/a", "one\ntwo\nthree\n")
    with fs.open(f"{root}/a") as file:
        assert list(file) == [b"one\n", b"two\n", b"three\n"]
    assert fs.read_text(f"{root}/a") == "one\ntwo\nthree\n"
    assert fs.read_block(f"{root}/a", 2, 4, delimiter=b"\n") == b"two\n"
    assert fs.head(f"{root}/a", 3) == b"one"


# Nothing half-written is ever visible.


class Interrupted(Exception):
    pass


WRITERS: dict[str, Callable[[str], Any]] = {
    "fs.open": lambda url: url_to_fs(url)[0].open(url, "wb"),
    "fs.open, text": lambda url: url_to_fs(url)[0].open(url, "w", encoding="utf-8"),
    "fs.open, gzip": lambda url: url_to_fs(url)[0].open(url, "wb", compression="gzip"),
    "fs.open, bz2 text": lambda url: url_to_fs(url)[0].open(url, "wt", compression="bz2"),
    "fs.open, zip": lambda url: url_to_fs(url)[0].open(url, "wb", compression="zip"),
    "fsspec.open": lambda url: fsspec.open(url, "wb"),
    "fsspec.open, text": lambda url: fsspec.open(url, "w"),
    "fsspec.open, gzip": lambda url: fsspec.open(url, "wb", compression="gzip"),
    "fsspec.open, xz text": lambda url: fsspec.open(url, "wt", compression="xz"),
}


def _write(file: Any, size: int) -> None:
    file.write("x" * size if isinstance(file, io.TextIOBase) else b"x" * size)


@pytest.mark.parametrize("size", [3, 5 * MIB])
@pytest.mark.parametrize("mode", ["wb", "xb", "ab"])
def test_an_exception_in_the_with_block_leaves_what_was_there(
    fs: DisklessFileSystem, root: str, mode: str, size: int
) -> None:
    fs.pipe_file(f"{root}/old", b"old")
    for name in ("new",) if mode == "xb" else ("old", "new"):
        with suppress(Interrupted), fs.open(f"{root}/{name}", mode) as file:
            _write(file, size)
            raise Interrupted
    gc.collect()
    assert fs.cat(root, recursive=True) == {f"{root}/old": b"old"}


@pytest.mark.parametrize("how", [how for how in WRITERS if how != "fs.open"])
def test_a_wrapper_of_fsspecs_closes_the_file_after_an_exception_too(
    fs: DisklessFileSystem, root: str, url: str, how: str
) -> None:
    with suppress(Interrupted), WRITERS[how](f"{url}/a") as file:
        _write(file, 10)
        raise Interrupted
    assert fs.isfile(f"{root}/a")


@pytest.mark.parametrize("how", WRITERS)
def test_without_an_exception_the_file_is_there_and_not_before(
    fs: DisklessFileSystem, root: str, url: str, how: str
) -> None:
    with WRITERS[how](f"{url}/a") as file:
        _write(file, 5 * MIB)
        assert not fs.exists(f"{root}/a")
    codec = how.partition(", ")[2].split(" ")[0]
    compression = codec if codec in ("gzip", "bz2", "zip", "xz") else None
    with fs.open(f"{root}/a", compression=compression) as file:
        assert file.read() == b"x" * 5 * MIB


def test_a_file_that_nobody_closes_is_not_stored_and_the_log_says_so(
    fs: DisklessFileSystem, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = fs.open(f"{root}/a", "wb")
    file.write(b"x")
    del file
    gc.collect()
    assert fs.find(root) == []
    assert "never-closed" in caplog.text


# Transactions.


def test_a_transactions_files_become_visible_together(fs: DisklessFileSystem, root: str) -> None:
    big = random.Random(2).randbytes(SPOOL_BYTES_MAX + 4321)
    with fs.transaction:
        with fs.open(f"{root}/a", "wb") as file:
            file.write(b"1")
        with fs.open(f"{root}/b.gz", "wt", compression="infer") as file:
            file.write("2")
        with fs.open(f"{root}/big", "wb") as file:
            file.write(big)
        fs.pipe({f"{root}/c": b"3", f"{root}/d": b"4"})
        fs.touch(f"{root}/e")
        fs.pipe_file(f"{root}/e", b"the last one counts")
        assert fs.find(root) == []
    assert gzip.decompress(fs.cat_file(f"{root}/b.gz")) == b"2"
    assert fs.cat_file(f"{root}/big") == big
    names = ("a", "c", "d", "e")
    assert [fs.cat_file(f"{root}/{name}") for name in names] == [
        b"1",
        b"3",
        b"4",
        b"the last one counts",
    ]
    assert len({fs.info(path)["mtime"] for path in fs.find(root)}) == 1
    fs.pipe_file(f"{root}/after", b"at once again")
    assert fs.exists(f"{root}/after")


def test_a_transaction_that_fails_leaves_nothing(fs: DisklessFileSystem, root: str) -> None:
    with suppress(Interrupted), fs.transaction:
        fs.pipe_file(f"{root}/a", b"1")
        with fs.open(f"{root}/b", "wb") as file:
            file.write(b"2")
        raise Interrupted
    assert fs.find(root) == []
    fs.pipe_file(f"{root}/after", b"")
    assert fs.find(root) == [f"{root}/after"]


def _put_a_directory_in_the_way(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe({f"{root}/a": b"1", f"{root}/raced": b"2"})
    fs.mkdir(f"{root}/raced")


def _race_an_exclusive_file(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/raced", b"2", mode="create")
    fs.client.write(f"{root}/raced", b"someone else's")


def _race_an_exclusive_file_among_others(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"1")
    _race_an_exclusive_file(fs, root)


def _leave_a_file_open(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"1")
    fs.open(f"{root}/b", "wb").write(b"2")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_put_a_directory_in_the_way, PathIsDirectory),
        (_race_an_exclusive_file, AlreadyExists),
        (_race_an_exclusive_file_among_others, AlreadyExists),
        (_leave_a_file_open, ValueError),
    ],
)
def test_a_transaction_that_cannot_be_committed_leaves_nothing(
    fs: DisklessFileSystem, root: str, spoil: Callable[..., None], error: type[Exception]
) -> None:
    with pytest.raises(error), fs.transaction:
        spoil(fs, root)
    assert set(fs.cat(root, recursive=True).values()) <= {b"someone else's"}
    fs.pipe_file(f"{root}/after", b"at once again")
    assert fs.exists(f"{root}/after")


def test_a_file_given_up_inside_a_transaction_is_left_out(
    fs: DisklessFileSystem, root: str
) -> None:
    with fs.transaction:
        with suppress(Interrupted), fs.open(f"{root}/a", "wb") as file:
            file.write(b"half")
            raise Interrupted
        fs.pipe_file(f"{root}/b", b"whole")
    assert fs.find(root) == [f"{root}/b"]


def test_an_empty_transaction_and_appending_in_one(fs: DisklessFileSystem, root: str) -> None:
    with fs.transaction:
        pass
    with pytest.raises(ValueError, match="'ab'"), fs.transaction:
        fs.open(f"{root}/a", "ab")
    assert fs.find(root) == []


def test_without_autocommit_a_file_waits_for_commit_or_discard(
    fs: DisklessFileSystem, root: str
) -> None:
    for name in ("kept", "dropped"):
        with fs.open(f"{root}/{name}", "wb", autocommit=False) as file:
            file.write(name.encode())
        assert fs.find(root) == ([] if name == "kept" else [f"{root}/kept"])
        with pytest.raises(ValueError, match="closed"):
            file.write(b"too late")
        if name == "kept":
            file.commit()
        else:
            file.discard()
    assert fs.cat(root, recursive=True) == {f"{root}/kept": b"kept"}


def test_a_transaction_without_a_with_block(fs: DisklessFileSystem, root: str) -> None:
    fs.start_transaction()
    fs.pipe_file(f"{root}/a", b"1")
    assert not fs.exists(f"{root}/a")
    fs.end_transaction()
    assert fs.cat_file(f"{root}/a") == b"1"


# Threads and processes.


def test_threads_share_an_instance_and_instances_a_client(
    fs: DisklessFileSystem, root: str
) -> None:
    clients = set()

    def work(number: int) -> None:
        path = f"{root}/{number}"
        data = random.Random(number).randbytes(number * 100_000)
        with fs.open(path, "wb") as file:
            file.write(data)
        own = fsspec.filesystem("diskless", cluster=fs.cluster)
        clients.add(own.client)
        with own.open(path) as file:
            assert file.read() == data

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    assert len(fs.find(root)) == 24
    assert clients == {fs.client}


def test_a_reader_sees_whole_versions_while_another_thread_replaces_the_file(
    fs: DisklessFileSystem, root: str
) -> None:
    versions = [bytes([number]) * (200_000 + number) for number in range(20)]
    fs.pipe_file(f"{root}/a", versions[0])
    done = threading.Event()

    def replace_often() -> None:
        try:
            for version in versions:
                fs.pipe_file(f"{root}/a", version)
        finally:
            done.set()

    writer = threading.Thread(target=replace_often)
    writer.start()
    seen = 0
    while not done.is_set() or not seen:
        with fs.open(f"{root}/a") as file:
            assert file.read() in versions
        seen += 1
    writer.join()


def test_instances_and_open_files_survive_pickling(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"0123456789")
    assert pickle.loads(pickle.dumps(fs)) is fs
    assert DisklessFileSystem.from_json(fs.to_json()) is fs
    assert fs.cluster.encode() in pickle.dumps(fs)
    with fs.open(f"{root}/a") as file:
        file.seek(4)
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.read() == b"456789"
    of = pickle.loads(pickle.dumps(fsspec.open(fs.unstrip_protocol(f"{root}/a"), "rt")))
    with of as text:
        assert text.read() == "0123456789"
    DisklessFileSystem.clear_instance_cache()
    fresh = pickle.loads(pickle.dumps(fs))
    assert fresh is not fs
    assert fresh == fs
    assert fresh.cat_file(f"{root}/a") == b"0123456789"


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child, which must end well and in time."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the edge of a process
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + CHILD_TIMEOUT_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_connects_anew(fs: DisklessFileSystem, root: str) -> None:
    data = random.Random(3).randbytes(3 * MIB)
    fs.pipe_file(f"{root}/parent", data)
    reader = fs.open(f"{root}/parent")

    def work() -> None:
        assert fs.cat_file(f"{root}/parent") == data
        start = reader.tell()
        assert reader.read() == data[start:]
        with fs.open(f"{root}/child", "wb") as file:
            file.write(data)
        again = fsspec.filesystem("diskless", cluster=fs.cluster)
        again.pipe_file(f"{root}/child-2", b"2")

    for _ in range(3):
        in_child(work)
        start = reader.tell()
        assert reader.read(500_000) == data[start : start + 500_000]
        assert fs.cat_file(f"{root}/child") == data
    assert fs.cat_file(f"{root}/child-2") == b"2"
    reader.close()


# Real users.


@pytest.fixture
def frame() -> pd.DataFrame:
    numbers = range(100_000)
    return pd.DataFrame({"n": numbers, "word": [f"w{n % 977}" for n in numbers]})


def test_pandas_writes_and_reads(url: str, frame: pd.DataFrame) -> None:
    frame.to_parquet(f"{url}/t.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(f"{url}/t.parquet"), frame)
    assert pd.read_parquet(f"{url}/t.parquet", columns=["n"]).n.sum() == frame.n.sum()
    frame.to_csv(f"{url}/t.csv.gz", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(f"{url}/t.csv.gz"), frame)
    frame.to_pickle(f"{url}/t.pickle")
    pd.testing.assert_frame_equal(pd.read_pickle(f"{url}/t.pickle"), frame)
    frame[:10].to_csv(f"{url}/t.csv", index=False)
    frame[10:20].to_csv(f"{url}/t.csv", index=False, header=False, mode="a")
    pd.testing.assert_frame_equal(pd.read_csv(f"{url}/t.csv"), frame[:20])


def test_pandas_takes_the_cluster_as_a_storage_option(
    fs: DisklessFileSystem, root: str, frame: pd.DataFrame
) -> None:
    options = {"cluster": fs.cluster, "timeout_s": 20.0}
    frame.to_parquet(f"diskless://{root}/t.parquet", storage_options=options)
    again = pd.read_parquet(f"diskless://{root}/t.parquet", storage_options=options)
    pd.testing.assert_frame_equal(again, frame)


def test_pyarrow_writes_and_reads_a_partitioned_dataset(
    fs: DisklessFileSystem, root: str, frame: pd.DataFrame
) -> None:
    frame["part"] = frame.n % 5
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pyarrow.dataset.write_dataset(
        table,
        f"{root}/set",
        filesystem=fs,
        format="parquet",
        partitioning=["part"],
        partitioning_flavor="hive",
        existing_data_behavior="delete_matching",
    )
    assert fs.ls(f"{root}/set", detail=False) == [f"{root}/set/part={x}" for x in range(5)]
    dataset = pyarrow.dataset.dataset(f"{root}/set", filesystem=fs, partitioning="hive")
    assert dataset.count_rows() == len(frame)
    some = dataset.to_table(filter=pyarrow.dataset.field("part") == 3, columns=["n"])
    assert sorted(some["n"].to_pylist()) == list(range(3, len(frame), 5))


def test_pyarrow_uses_all_of_the_file_system(fs: DisklessFileSystem, tree: str) -> None:
    arrow = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs))
    info = arrow.get_file_info(f"{tree}/a/3.csv")
    assert (info.type, info.size) == (pa.fs.FileType.File, 7)
    assert info.mtime == fs.modified(f"{tree}/a/3.csv")
    found = arrow.get_file_info(pa.fs.FileSelector(tree, recursive=True))
    assert {one.path for one in found} == set(fs.find(tree, withdirs=True)) - {tree}
    arrow.move(f"{tree}/a", f"{tree}/z")
    arrow.copy_file(f"{tree}/z/3.csv", f"{tree}/copy")
    with arrow.open_append_stream(f"{tree}/copy") as stream:
        stream.write(b"!")
    with arrow.open_input_stream(f"{tree}/copy") as stream:
        assert stream.read() == b"a/3.csv!"
    arrow.create_dir(f"{tree}/z/new")
    arrow.delete_file(f"{tree}/copy")
    arrow.delete_dir_contents(f"{tree}/z")
    arrow.delete_dir(f"{tree}/z")
    assert fs.find(tree) == [f"{tree}/1.csv", f"{tree}/2.txt"]


def test_fsspec_opens_text_compressed_and_in_bulk(
    fs: DisklessFileSystem, root: str, url: str
) -> None:
    with fsspec.open(f"{url}/a.json.gz", "wt", compression="infer", encoding="utf-8") as file:
        json.dump({"größe": 1}, file, ensure_ascii=False)
    assert json.loads(gzip.decompress(fs.cat_file(f"{root}/a.json.gz"))) == {"größe": 1}
    with fsspec.open_files(f"{url}/part-*.txt", "w", num=3) as files:
        for number, file in enumerate(files):
            file.write(str(number))
    with fsspec.open_files(f"{url}/part-*.txt", "r") as files:
        assert [file.read() for file in files] == ["0", "1", "2"]


def test_mappers_caches_and_views_work_on_top(
    fs: DisklessFileSystem, root: str, url: str, tmp_path: Path
) -> None:
    mapper = fsspec.get_mapper(f"{url}/map", create=True)
    mapper["a/0.0"] = b"chunk"
    mapper.setitems({"a/0.1": b"x", "a/0.2": b"y"})
    del mapper["a/0.2"]
    assert dict(mapper) == {"a/0.0": b"chunk", "a/0.1": b"x"}
    cached = f"filecache::{url}/map/a/0.0"
    options = {"filecache": {"cache_storage": str(tmp_path), "check_files": True}}
    for content in (b"chunk", b"newer"):
        fs.pipe_file(f"{root}/map/a/0.0", content)
        with fsspec.open(cached, **options) as file:
            assert file.read() == content
    view = fsspec.filesystem("dir", path=f"{root}/map", fs=fs)
    assert view.find("a") == ["a/0.0", "a/0.1"]


def test_errors_are_built_in_ones_too(fs: DisklessFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"")
    for path, kind in ((f"{root}/none", NotFound), (root, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            fs.open(path)
        assert isinstance(caught.value, DisklessError)
        assert isinstance(caught.value, OSError)
    with pytest.raises(NotADirectoryError):
        fs.pipe_file(f"{root}/a/below", b"")
    with pytest.raises(ValueError, match=r"\.\."):
        fs.exists(f"{root}/../a")
