"""A real Redis with two replicas, as the benchmark starts it, and what happens without one."""

import os
import shutil
from pathlib import Path

import psutil
import pytest

from diskless.bench import redis_servers, store
from diskless.bench.recorder import Recorder
from diskless.bench.stores import UNCOPIED_BYTES, RedisAt, RedisStore

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason=redis_servers.NO_SERVER
)


@needs_redis
def test_a_write_is_on_both_replicas_and_survives_the_loss_of_two_servers() -> None:
    small, large = os.urandom(100), os.urandom(UNCOPIED_BYTES + 1)
    with redis_servers.servers() as servers:
        pids = servers.pids
        found = RedisAt(servers.ports[0]).open()
        found.write("small", small)
        found.write("large", large)
        found.write_many({f"many/{n}": bytes([n]) for n in range(200)})
        for port in servers.ports:
            copy = RedisStore(redis_servers.connect(port), replicas=0)
            assert (copy.read("small"), copy.read("large")) == (small, large)
            assert copy.read("many/199") == bytes([199])
            copy.close()
        found.close()
        left = RedisAt(servers.lose_all_but_one_replica(), replicas=0).open()
        assert left.read("large") == large
        left.write("after", b"1")
        left.clear()
        with pytest.raises(KeyError):
            left.read("after")
        left.close()
    assert not any(_runs(pid) for pid in pids)


@needs_redis
def test_a_write_that_reaches_too_few_replicas_fails() -> None:
    with redis_servers.servers() as servers:
        lonely = RedisStore(redis_servers.connect(servers.ports[0]), replicas=3)
        lonely.wait_ms = 1000
        with pytest.raises(TimeoutError, match="2 of 3 replicas"):
            lonely.write("a", b"1")
        lonely.close()


def test_without_a_server_one_line_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(redis_servers.RedisMissing, match="apt install redis-server"):
        redis_servers.check()


def test_without_a_server_the_other_systems_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record, said = Recorder("store"), list[str]()
    with store.line_up_rivals(record, said.append) as rivals:
        assert [rival.name for rival in rivals] == ["disk", "disk, fsync", "tmpfs"]
    assert record.notes == said == [redis_servers.NO_SERVER]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
