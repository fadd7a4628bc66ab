"""How long it takes to be well again: a batch after a kill, a query in a new JVM, a rebuild.

A checkpoint of each size is made once, on the disk, and copied into diskless: both systems
restart the same query from the same files. A restart begins with the start of the process
and ends with the commit of its first batch.
"""

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from diskless.bench import queries, works
from diskless.bench.clusters import Cluster, cluster, shape_settings, wait_for
from diskless.bench.query import Plan, cached_share
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import Sizes
from diskless.client.client import Client
from diskless.config import GIB, MIB
from diskless.model import ClusterStatus, parse_slot

SYSTEM = works.diskless(works.MAIN_SHAPE)
DISK_DIRECTORY = "/var/tmp"
MB = 1_000_000
VALUE_BYTES = 1000
RESTART_ROWS = 1000
HEALTHY_BATCHES = 6
STREAM = Plan(checkpoint="", keys=200_000, rows_per_batch=20_000)
"""What runs while agents are killed: the query of the Spark part."""
VICTIMS = (2, 4)
TIMEOUT_S = 120.0
MEMORY_BYTES = 2 * GIB
FILE_BYTES = 64 * MIB
COPY_BYTES = 8 * MIB


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("recovery")
    with cluster(shape_settings(works.MAIN_SHAPE, memory_bytes=MEMORY_BYTES)) as running:
        if sizes.agent_kills:
            say("agents killed under a stream")
            _kills(running, sizes, record)
        for provider in sizes.restart_providers:
            for megabytes in sizes.restart_mb:
                say(f"a query with {megabytes:g} MB of {provider} state, restarted")
                _restarts(running, provider, megabytes, sizes, record)
        for megabytes in sizes.rebuild_mb:
            say(f"{megabytes:g} MB rebuilt")
            _rebuild(running, megabytes, record)
    return record


# A kill under a stream.


def _kills(running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """The leader and another agent in turns, at whatever point of a batch it is."""
    timeout_s = running.settings.tuning.failure_timeout_s
    plan = _on_diskless(STREAM, running.name, "/kills")
    with queries.start(plan) as stream:
        stream.next()
        for _ in range(HEALTHY_BATCHES):
            stream.next()
        for turn in range(sizes.agent_kills):
            running.wait_recovered()
            healthy_s = _healthy_s(stream)
            status = running.client.status()
            leader = parse_slot(status.leader)
            victim = leader if turn % 2 == 0 else (leader + 1) % running.settings.agents
            killed_s = time.time()
            os.kill(status.agents[victim].pid, signal.SIGKILL)
            while (news := stream.next())["committed_s"] < killed_s:
                pass
            record.add(works.AFTER_KILL, SYSTEM, news["committed_s"] - killed_s, "s")
            record.add(works.AFTER_KILL_BOUND, SYSTEM, 2 * healthy_s + 2 * timeout_s, "s")
            record.add(works.HEALTHY_BATCH, SYSTEM, healthy_s, "s")
    running.wait_recovered()


def _healthy_s(stream: queries.Running) -> float:
    """The median of some batches that begin now; older ones may wait to be heard of."""
    now_s = time.time()
    took: list[float] = []
    while len(took) < HEALTHY_BATCHES:
        news = stream.next()
        if news["committed_s"] - news["trigger_ms"] / 1000 >= now_s:
            took.append(news["trigger_ms"] / 1000)
    return sorted(took)[len(took) // 2]


def _on_diskless(plan: Plan, name: str, path: str) -> Plan:
    return replace(plan, checkpoint=f"diskless://{path}", cluster=name)


# A query in a new JVM.


def _restarts(
    running: Cluster, provider: str, megabytes: float, sizes: Sizes, record: Recorder
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="diskless-bench-", dir=DISK_DIRECTORY))
    path = f"/restart-{provider}-{megabytes:g}"
    try:
        base = restart_plan(directory, provider, megabytes)
        build(base)
        size = copy_in(running.client, directory, path)
        on_diskless = _on_diskless(base, running.name, path)
        record.add(works.restart_bytes(provider), works.DISK, size / MB, "MB", size=megabytes)
        plans = {works.DISK: base, SYSTEM: on_diskless}
        for turn in range(sizes.restarts):
            for system in sorted(plans, reverse=turn % 2 == 1):
                cached = cached_share(directory) if system == works.DISK else None
                whole_s, query_s = restart_s(plans[system])
                record.add(works.restart(provider), system, whole_s, "s", size=megabytes)
                record.add(works.restart_query(provider), system, query_s, "s", size=megabytes)
                if cached is not None:
                    record.add(
                        works.restart_cached(provider), system, 100 * cached, "%", size=megabytes
                    )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        running.client.delete(path, recursive=True)


def restart_plan(directory: Path, provider: str, megabytes: float) -> Plan:
    """One small batch on a state of that size, whose checkpoint is on the disk."""
    return Plan(
        checkpoint=f"file://{directory}",
        provider=provider,
        keys=max(1, int(megabytes * MB / VALUE_BYTES)),
        value_bytes=VALUE_BYTES,
        rows_per_batch=RESTART_ROWS,
        batches=1,
        driver_memory="6g" if megabytes > 200 else "2g",
    )


def build(plan: Plan) -> None:
    """A checkpoint whose state has every key, by one batch."""
    (only,) = queries.batches(replace(plan, rows_per_batch=plan.keys, batches=1))
    if only["state_rows"] != plan.keys:
        raise AssertionError(f"the state has {only['state_rows']} rows, not {plan.keys}")


def restart_s(plan: Plan) -> tuple[float, float]:
    """From the start of the process, and from when Spark is there, to the first commit."""
    with queries.start(plan) as running:
        session = running.next()
        first = running.next()
    return first["committed_s"] - running.started_s, first["committed_s"] - session["session_s"]


def copy_in(client: Client, directory: Path, path: str) -> int:
    """A checkpoint from the disk, without Hadoop's checksum files; how many bytes it has."""
    total = 0
    for source in sorted(directory.rglob("*")):
        target = f"{path}/{source.relative_to(directory)}"
        if source.is_dir():
            client.mkdirs(target)
        elif not (source.name.startswith(".") and source.name.endswith(".crc")):
            total += source.stat().st_size
            with source.open("rb") as file, client.open(target, "wb") as copy:
                shutil.copyfileobj(file, copy, COPY_BYTES)
    return total


# Two agents lost, and what they held rebuilt.


def _rebuild(running: Cluster, megabytes: float, record: Recorder) -> None:
    client, size = running.client, int(megabytes * MB)
    running.wait_recovered()
    data = os.urandom(min(size, FILE_BYTES))
    count = max(1, round(size / len(data)))
    for n in range(count):
        client.write(f"/rebuild/{n}", data)
    note = lambda work, value: record.add(work, SYSTEM, value, "s", size=megabytes)  # noqa: E731
    note(works.HEALTHY_READ, _read_s(client, data, count))
    status = client.status()
    lives = _lives(status)
    killed = time.monotonic()
    for slot in VICTIMS:
        os.kill(status.agents[slot].pid, signal.SIGKILL)
    wait_for(client, _both_gone, timeout_s=TIMEOUT_S, what="both agents are known to be gone")
    note(works.DETECTION, time.monotonic() - killed)
    note(works.DEGRADED_READ, _read_s(client, data, count))
    wait_for(client, lambda s: _lives(s) >= lives + 2, timeout_s=TIMEOUT_S, what="both are back")
    back = time.monotonic()
    running.wait_recovered()
    note(works.REBUILD, time.monotonic() - back)
    note(works.TOTAL, time.monotonic() - killed)
    client.delete("/rebuild", recursive=True)


def _both_gone(status: ClusterStatus) -> bool:
    """Down, or in another life already."""
    return not any(status.agents[slot].is_there() for slot in VICTIMS)


def _lives(status: ClusterStatus) -> int:
    return sum(agent.incarnation for agent in status.agents)


def _read_s(client: Client, data: bytes, count: int) -> float:
    began = time.perf_counter()
    for n in range(count):
        if client.read(f"/rebuild/{n}") != data:
            raise AssertionError("what was read is not what was written")
    return time.perf_counter() - began
