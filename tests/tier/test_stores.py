"""One contract that every store keeps: a directory, a real S3 server, and the faulty one; and
what each says when it cannot."""

import asyncio
import gc
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from diskless.bench.weed import BUCKET, Weed
from diskless.errors import BadSettings, NoSuchBucket, StoreDenied, StoreDown
from diskless.tier import files
from diskless.tier.address import check_uri, open_store
from diskless.tier.files import TEMPORARY, FileStore
from diskless.tier.remote import RemoteStore, read_credentials
from diskless.tier.store import Metered, Missing, Store, Taken, check
from tests.tier.faulty import FaultyStore

Make = Callable[[], Metered]
_numbers = itertools.count()


@pytest.fixture(params=["file", "s3", "faulty"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "file":
        return lambda: open_store(f"file://{tmp_path}/new/tier")
    if request.param == "faulty":
        store = FaultyStore(random.Random(1))
        return lambda: Metered(store)
    weed: Weed = request.getfixturevalue("weed")
    prefix = f"contract/{os.getpid()}-{next(_numbers)}"
    return lambda: remote(weed, f"s3://{BUCKET}/{prefix}")


def remote(weed: Weed, uri: str, who: str = "writer") -> Metered:
    return Metered(RemoteStore(uri, weed.settings(who)), request_s=30)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_store_keeps_its_contract(make: Make) -> None:
    async def work() -> None:
        store = make()
        await check(store)
        await store.put_new("chain/1", [b"ab", memoryview(b"cd"), bytearray(b"ef")])
        assert await store.get("chain/1") == b"abcdef"
        assert await store.get("chain/1", 2, 4) == b"cd"
        assert await store.get("chain/1", 4) == b"ef"
        assert await store.get("chain/1", 4, 100) == b"ef"
        assert await store.get("chain/1", 3, 3) == b""
        assert await store.size("chain/1") == 6
        with pytest.raises(Taken):
            await store.put_new("chain/1", [b"other"])
        assert await store.get("chain/1") == b"abcdef"
        await store.put_new("segments/a", [])
        assert await store.size("segments/a") == 0
        assert await store.names("chain/") == ["chain/1"]
        assert await store.names("segments/") == ["segments/a"]
        await store.settle("chain/1")
        await store.delete("chain/1")
        await store.delete("chain/1")
        for asked in (store.get("chain/1"), store.size("chain/1"), store.get("chain/1", 1, 2)):
            with pytest.raises(Missing):
                await asked
        assert await store.names("chain/") == []
        assert store.counts.objects_put == 3
        assert store.counts.bytes_put == 6 + len(b"diskless")

    run(work())


def test_of_many_who_create_one_name_one_wins(make: Make) -> None:
    async def work() -> None:
        store = make()
        data = [bytes([n]) * 100_000 for n in range(8)]
        results = await asyncio.gather(
            *(store.put_new("chain/7", [each]) for each in data), return_exceptions=True
        )
        (winner,) = [n for n, result in enumerate(results) if result is None]
        assert all(isinstance(result, Taken) for result in results if result is not None)
        assert await store.get("chain/7") == data[winner]

    run(work())


def test_nothing_of_what_is_asked_first_leaves_anything_behind(make: Make) -> None:
    async def work() -> None:
        store = make()
        await check(store)
        assert await store.names("probe/") == []

    run(work())


# --- file:// ---


def test_a_file_and_then_its_directory_are_synced_before_a_create_returns(tmp_path: Path) -> None:
    synced: list[str] = []

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        os.fsync(handle)

    store = FileStore(tmp_path / "tier", fsync=fsync)
    run(store.put_new("chain/1", [b"x"]))
    made = [str(tmp_path), str(tmp_path / "tier")]
    assert synced[:2] == made, "a new directory's own name is synced in the one above"
    assert [Path(path).parent.name for path in synced[-2:]] == [TEMPORARY, "tier"]
    assert synced[-1] == str(tmp_path / "tier/chain")
    synced.clear()
    with pytest.raises(Taken):
        run(store.put_new("chain/1", [b"x"]))
    assert synced[-1] == str(tmp_path / "tier/chain"), "whoever made it may have died before that"
    synced.clear()
    run(store.settle("chain/1"))
    assert synced == [str(tmp_path / "tier/chain")]


def test_a_mount_that_hangs_takes_no_memory_and_no_threads_of_others(tmp_path: Path) -> None:
    class Part(bytearray):
        """Of a segment; it can be asked whether it is still there."""

    over = threading.Event()
    parts: list[weakref.ref[Part]] = []

    async def work() -> None:
        store = Metered(
            FileStore(tmp_path / "tier", fsync=lambda _: bool(over.wait())), request_s=0.02
        )
        for number in range(3 * files.THREADS):
            part = Part(1)
            parts.append(weakref.ref(part))
            with pytest.raises(StoreDown, match="did not write"):
                await store.put_new(f"chain/{number}", [part])
        gc.collect()
        hang, wait = parts[: files.THREADS], parts[files.THREADS : -1]
        assert all(part() for part in hang)
        assert not any(part() for part in wait)
        for _ in range(40):  # more than all others share
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(str, 7) == "7"

    try:
        run(work())
    finally:
        over.set()


def test_a_mount_that_hangs_does_not_keep_the_event_loop_from_working(tmp_path: Path) -> None:
    over = threading.Event()

    class Hung(type(tmp_path)):  # type: ignore[misc]
        def is_dir(self) -> bool:
            return over.wait(10)

    async def work() -> None:
        with pytest.raises(StoreDown, match="did not read"):
            await Metered(FileStore(Hung(tmp_path)), request_s=0.02).get("chain/1")

    try:
        began_s = time.monotonic()
        run(work())
        assert time.monotonic() - began_s < 5
    finally:
        over.set()


def test_a_writer_that_is_killed_leaves_whole_objects_or_none(tmp_path: Path) -> None:
    program = (
        "import asyncio, itertools, sys\n"
        "from pathlib import Path\n"
        "from diskless.tier.files import FileStore\n"
        "async def work():\n"
        "    store = FileStore(Path(sys.argv[1]))\n"
        "    for n in itertools.count():\n"
        "        await store.put_new(f'chain/{n:06d}', [bytes([n % 251]) * 3_000_000])\n"
        "        print(n, flush=True)\n"
        "asyncio.run(work())\n"
    )
    rng = random.Random(7)
    for turn in range(4):
        root = tmp_path / str(turn)
        writer = subprocess.Popen([sys.executable, "-c", program, root], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(rng.randint(1, 5)):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        told = writer.stdout.read().count(b"\n")
        writer.stdout.close()
        found = sorted((root / "chain").iterdir())
        assert len(found) > told
        for number, path in enumerate(found):
            assert path.name == f"{number:06d}"
            assert path.read_bytes() == bytes([number % 251]) * 3_000_000


def test_where_there_are_no_hard_links_a_name_is_taken_all_the_same(tmp_path: Path) -> None:
    first, second, target = (tmp_path / name for name in ("first", "second", "target"))
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    assert files._rename_new(first, target)
    assert not files._rename_new(second, target)
    assert target.read_bytes() == b"1"


def test_what_dead_writers_left_is_swept_by_those_that_write_after_them(tmp_path: Path) -> None:
    """Each of several may find that another one is faster. What may be in progress stays."""
    now_s = 0.0
    store = FileStore(tmp_path, now_s=lambda: now_s)

    def leave() -> tuple[Path, Path]:
        old, new = tmp_path / TEMPORARY / "old", tmp_path / TEMPORARY / "new"
        for path in (old, new):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"torn")
        os.utime(old, (0, 0))
        return old, new

    old, new = leave()
    run(store.put_new("chain/1", [b"x"]))
    assert not old.exists()
    assert new.exists()
    leave()
    now_s = files.STALE_S - 1
    run(store.put_new("chain/2", [b"x"]))
    assert old.exists(), "they do not look each time"
    now_s = files.STALE_S
    run(store.put_new("chain/3", [b"x"]))
    assert not old.exists()
    (tmp_path / TEMPORARY / "taken").symlink_to(tmp_path / "away")
    assert leave()[0].exists()
    assert store.sweep() == 1, "whatever is gone by the time that it is looked at"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir(mode=0o500)
    with pytest.raises(StoreDenied, match="must be writable by this user") as caught:
        run(check(open_store(f"file://{tmp_path}/tier")))
    assert "\n" not in str(caught.value)


def test_a_file_where_the_directory_should_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tier").write_bytes(b"")
    with pytest.raises(StoreDenied, match="a tier needs a directory there") as caught:
        run(check(open_store(f"file://{tmp_path}/tier")))
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_the_one_it_was_takes_nothing(tmp_path: Path) -> None:
    """As when what was mounted there is not any more."""
    root, away = tmp_path / "tier", tmp_path / "away"
    store = FileStore(root)
    run(store.put_new("chain/1", [b"x"]))
    root.rename(away)
    with pytest.raises(StoreDown, match="is not there any more"):
        run(store.put_new("chain/2", [b"x"]))
    root.mkdir()
    with pytest.raises(StoreDown, match="it lacks chain/1"):
        run(store.put_new("chain/2", [b"x"]))
    assert list(root.iterdir()) == []


def test_a_directory_that_is_back_under_another_number_is_the_one_it_was(tmp_path: Path) -> None:
    root, away = tmp_path / "tier", tmp_path / "away"
    store = FileStore(root)
    run(store.put_new("chain/1", [b"x"]))
    root.rename(away)
    shutil.copytree(away, root)
    run(store.put_new("chain/2", [b"x"]))
    assert (root / "chain/2").read_bytes() == b"x"


def test_a_full_disk_is_down_and_not_denied(tmp_path: Path) -> None:
    def fsync(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreDown, match="No space left"):
        run(FileStore(tmp_path, fsync=fsync).put_new("chain/1", [b"x"]))


# --- s3:// ---


def expect(weed: Weed, error: type[Exception], match: str, *, who: str, bucket: str) -> None:
    store: Store = remote(weed, f"s3://{bucket}/x", who)
    with pytest.raises(error, match=match) as caught:
        run(check(store))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_wrong_bucket_is_one_line(weed: Weed) -> None:
    expect(weed, NoSuchBucket, "there is no bucket 'nowhere'", who="admin", bucket="nowhere")


@pytest.mark.parametrize("who", ["reader", "stranger"])
def test_missing_rights_are_one_line(weed: Weed, who: str) -> None:
    expect(weed, StoreDenied, "AccessDenied", who=who, bucket=BUCKET)


def test_credentials_that_nobody_knows_are_one_line(weed: Weed) -> None:
    expect(weed, StoreDenied, "InvalidAccessKeyId", who="nobody", bucket=BUCKET)


def test_no_server_is_one_line(weed: Weed) -> None:
    settings = {**weed.settings(), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    store = RemoteStore(f"s3://{BUCKET}/x", settings)
    with pytest.raises(StoreDown, match="nobody listens there") as caught:
        run(check(Metered(store)))
    assert "\n" not in str(caught.value)


async def serves(store: Store) -> bool:
    """It listens before its volumes are found."""
    try:
        await store.get("chain/1")
    except StoreDown:
        return False
    return True


def test_a_server_that_is_killed_and_started_again_has_what_it_acknowledged(weed: Weed) -> None:
    uri = f"s3://{BUCKET}/killed"

    async def before() -> None:
        await remote(weed, uri).put_new("chain/1", [b"kept"])

    async def meanwhile() -> None:
        with pytest.raises(StoreDown):
            await remote(weed, uri).put_new("chain/2", [b"lost"])

    async def after() -> None:
        store = remote(weed, uri)
        async with asyncio.timeout(60):
            while not await serves(store):
                await asyncio.sleep(0.1)
        assert await store.get("chain/1") == b"kept"
        with pytest.raises(Taken):
            await store.put_new("chain/1", [b"again"])
        with pytest.raises(Missing):
            await store.get("chain/2")

    run(before())
    weed.kill()
    try:
        run(meanwhile())
    finally:
        weed.start()
    run(after())


def test_credentials_come_from_the_environment_or_from_a_file(
    weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("# of the tests\n" + "".join(f"{k}={v}\n" for k, v in weed.settings().items()))
    file.chmod(0o600)
    run(check(open_store(f"s3://{BUCKET}/by-file", credentials=file)))
    for name, value in weed.settings().items():
        monkeypatch.setenv(name, value)
    run(check(open_store(f"s3://{BUCKET}/by-environment")))


def test_a_file_of_credentials_is_private_and_no_error_quotes_it(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("AWS_SECRET_ACCESS_KEY=hush")
    file.chmod(0o644)
    with pytest.raises(BadSettings, match="can be read by others") as caught:
        read_credentials(file)
    assert "hush" not in str(caught.value)
    file.chmod(0o600)
    assert read_credentials(file) == {"AWS_SECRET_ACCESS_KEY": "hush"}
    file.write_text("hush")
    with pytest.raises(BadSettings, match="line 1 is not NAME=VALUE") as caught:
        read_credentials(file)
    assert "hush" not in str(caught.value)


# --- addresses and deadlines ---


@pytest.mark.parametrize(
    "uri", ["file:///var/tier", "s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://account/c"]
)
def test_addresses_that_are_good(uri: str) -> None:
    check_uri(uri)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("/var/tier", "begins with one of"),
        ("ftp://host/x", "begins with one of"),
        ("file://var/tier", "three slashes"),
        ("file:///", "three slashes"),
        ("s3:///prefix", "names no bucket"),
        ("s3://key:hush@bucket/x", "holds no credentials"),
        ("s3://bucket/x?secret=hush", "holds no credentials"),
    ],
)
def test_addresses_that_are_refused_before_anything_is_asked(uri: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says) as caught:
        open_store(uri)
    assert "hush" not in str(caught.value)


def test_a_store_that_does_not_answer_is_down_after_its_deadline() -> None:
    store = FaultyStore(random.Random(1))
    store.faults.slow = 1.0
    with pytest.raises(StoreDown, match=r"did not read chain/1 within"):
        run(Metered(store, request_s=0.001).get("chain/1"))
