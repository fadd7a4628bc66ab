"""What the tests of whole clusters share: waiting, contents, looking inside, planting faults.

The one place that reaches into an agent's memory. Everything that touches an agent runs
on the agents' own loop. `check_ledger` is the invariant that every cluster must meet
when its test ends.
"""

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import msgspec
import psutil

import diskless
from diskless.agent.leading import Leader
from diskless.agent.shards import ShardStore
from diskless.client import Client, descriptor
from diskless.codec import codec_for
from diskless.config import MIB, Tuning
from diskless.errors import DisklessError
from diskless.launch.local import LocalCluster
from diskless.model import (
    AgentStatus,
    ClusterStatus,
    FileRecord,
    Stripe,
    StripeId,
    cut,
    format_address,
)
from diskless.namespace.tree import File
from diskless.node import Node
from tests.unit.recount import counted, recount
from tests.unit.test_namespace_world import check_counts, walk

WAIT_S = 60.0
"""Until a wait is given up. It ends as soon as its condition holds, so this may be long: machines
are busy at times."""
POLL_S_MAX = 0.1
RUN_TIMEOUT_S = 110

BRISK = Tuning(
    free_delay_s=0.3,
    orphan_delay_s=1.0,
    janitor_interval_s=0.1,
    demote_delay_s=0.2,
    repair_delay_s=0.5,
    repair_interval_s=0.05,
)
"""What happens after a while happens soon. Only the time after which silence means death
is as usual: all agents share one thread here, and a busy machine makes it wait."""
STRIPED = replace(BRISK, inline_bytes_max=0)
"""As BRISK, and only empty files are inline."""
CALM = Tuning(janitor_interval_s=3600.0, repair_interval_s=3600.0, inline_bytes_max=0)
"""Nothing is freed, moved or repaired by itself, and only empty files are inline."""

T = TypeVar("T")


def eventually(
    condition: Callable[[], object], timeout_s: float = WAIT_S, *, every_s: float = 0.01
) -> None:
    """Returns as soon as `condition()` is true; fails when it was not in time. What lasts is looked
    at less and less often: to look costs as much as what is waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(every_s)
        every_s = max(every_s, min(1.2 * every_s, POLL_S_MAX))


def states(client: Client) -> list[str]:
    return [agent.state for agent in client.status().agents]


def is_whole(client: Client, agents: int) -> bool:
    """Everything survives k losses, and all agents are there."""
    try:
        status = client.status()
    except DisklessError:
        return False  # a leader is being elected
    return status.is_whole() and len(status.agents) == agents


def content(size: int, seed: object = 0) -> bytes:
    """`size` bytes that look like no others."""
    return random.Random(f"{seed}/{size}").randbytes(size)


# Clusters


@contextmanager
def start_cluster(**settings: Any) -> Iterator[LocalCluster]:
    """A local cluster in which faults may be planted, checked for consistency when it ends in
    peace."""
    with diskless.local_cluster(**({"chaos": True} | settings)) as cluster:
        yield cluster
        check_ledger_of_leader(cluster)


def check_ledger_of_leader(cluster: LocalCluster) -> None:
    """Nothing to check where too many voters were lost: then nobody leads."""
    leading = [node for node in cluster.nodes.values() if node.replica.leads]
    for node in leading:
        on_loop(cluster, lambda node=node: check_ledger(node))


def on_loop(cluster: LocalCluster, work: Callable[[], T]) -> T:
    """Runs a plain function where the agents run, so that nothing changes meanwhile."""

    async def run() -> T:
        return work()

    return cluster.run(run())


def leader(cluster: LocalCluster) -> Node:
    """The agent that leads, once there is one."""
    found: list[Node] = []

    def find() -> bool:
        found[:] = [node for node in cluster.nodes.values() if node.replica.leads]
        return len(found) == 1

    eventually(find)
    return found[0]


def of_leader(cluster: LocalCluster, look: Callable[[Node], T]) -> T:
    """What `look` finds at the agent that leads, once there is one, where the agents run. To look
    for it there would keep the others from electing one."""

    def there() -> list[T]:
        return [look(node) for node in cluster.nodes.values() if node.replica.leads]

    found: list[T] = []

    def find() -> bool:
        found[:] = on_loop(cluster, there)
        return len(found) == 1

    eventually(find)
    return found[0]


def repair_once(cluster: LocalCluster) -> bool:
    """One round of the leader's repair, and whether it got on. What fails is put off, as it is when
    the leader repairs by itself."""

    async def work() -> bool:
        for node in [*cluster.nodes.values()]:
            if isinstance(node.replica.leading, Leader):
                with suppress(DisklessError):
                    return await node.replica.leading.repairer.repair()
        return False

    return cluster.run(work())


def wait_until_down(cluster: LocalCluster, *slots: int) -> None:
    """Until every living agent has been told that those are down."""

    def known() -> bool:
        rosters = [node.roster.agents for node in cluster.nodes.values()]
        return all(not agents[slot].up for agents in rosters for slot in slots)

    eventually(lambda: on_loop(cluster, known))


def kill(cluster: LocalCluster, *slots: int) -> None:
    """Kills agents and waits until the others know."""
    cluster.kill(*slots)
    wait_until_down(cluster, *slots)


def bytes_used(cluster: LocalCluster) -> int:
    """The shards of all agents together, with what is counted for keeping them."""
    return on_loop(
        cluster, lambda: sum(n.storage.shards.bytes_used for n in cluster.nodes.values())
    )


def shards_stored(cluster: LocalCluster) -> int:
    return on_loop(cluster, lambda: sum(len(n.storage.shards) for n in cluster.nodes.values()))


def record_of(cluster: LocalCluster, path: str) -> FileRecord:
    return of_leader(cluster, lambda node: node.replica.state.open(path)[0])


def stripes_of(cluster: LocalCluster, path: str) -> list[Stripe]:
    """The stripes of a file in the order of its bytes; none if it is inline."""

    def locate(node: Node) -> list[Stripe]:
        state = node.replica.state
        record = state.open(path)[0]
        return state.locate(dict.fromkeys(extent.stripe for extent in record.extents))

    return of_leader(cluster, locate)


def bulk_gateway(cluster: LocalCluster, client: Client) -> int:
    """The slot of the agent that takes this client's large files: it numbers their stripes."""
    client.write("/bulk-gateway", content(2 * MIB), overwrite=True)
    return StripeId.parse(stripes_of(cluster, "/bulk-gateway")[0].id).slot


def connect_to_follower(
    cluster: LocalCluster, connect: Callable[[LocalCluster], Client], *, but_not: int = 0
) -> tuple[Client, int]:
    """A client whose bulk goes through an agent that does not lead, and that agent's slot."""
    while True:
        client = connect(cluster)
        gateway = bulk_gateway(cluster, client)
        client.delete("/bulk-gateway")
        if gateway not in (0, but_not):
            return client, gateway


def needed_shards(stripe: Stripe, record: FileRecord) -> set[int]:
    """The data shards of `stripe` that hold bytes of the file."""
    codec = codec_for(stripe.data_shards, stripe.parity_shards)
    return {
        index
        for extent in cut(record.extents, 0, record.size)
        if extent.stripe == stripe.id
        for index, _, _ in codec.locate(
            payload_bytes=stripe.payload_bytes,
            start=extent.offset,
            stop=extent.offset + extent.length,
        )
    }


def check_ledger(node: Node) -> None:
    """What the namespace counts is what its files add up to."""
    state = node.replica.state
    files = [file.record for file in state.files.values()]
    check_counts(state)
    shown = [thing for _, thing in walk(state.tree.root) if isinstance(thing, File)]
    assert state.tree.files == len(shown)
    assert state.bytes_logical == sum(file.record.size for file in shown)
    assert state.bytes_inline == sum(len(record.inline or b"") for record in files)
    live: Counter[str] = Counter()
    for record in files:
        there = record.id in state.tier.cold or record.id in state.tier.evicted
        assert (record.inline is None) == (bool(record.extents) or there), record
        assert not (there and record.extents), record
        assert not there or state.tier.place(record.id) is not None, record
        for extent in record.extents:
            live[extent.stripe] += extent.length
    ledger = state.ledger
    kept = {id_: e.live_bytes for id_, e in ledger.entries.items() if id_ not in ledger.freed_ms}
    assert kept == dict(live)
    assert ledger.live_bytes == sum(live.values())
    assert ledger.payload_bytes == sum(ledger.entries[id_].stripe.payload_bytes for id_ in kept)
    sparse = {
        id_ for id_, bytes_ in kept.items() if bytes_ < ledger.entries[id_].stripe.payload_bytes
    }
    assert sparse == {*ledger.partly_dead}
    while not state.health.settle():
        pass
    assert counted(state) == recount(state)
    for entry in ledger.entries.values():
        slots = [place.slot for place in entry.stripe.places]
        assert (
            len(set(slots)) == len(slots) == entry.stripe.data_shards + entry.stripe.parity_shards
        )


# Clusters of processes, on Ray


class Program:
    """The command line, for one cluster."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "diskless.cli", "--cluster", self.name, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            env=os.environ | (env or {}),
        )

    def ok(self, *arguments: str) -> Any:
        """The JSON that a verb printed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, status: int, *arguments: str, env: dict[str, str] | None = None) -> str:
        """The one line with which a verb failed."""
        done = self.run(*arguments, env=env)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        return str(done.stderr)

    def agent(self, slot: int) -> AgentStatus:
        return msgspec.convert(self.ok("status"), ClusterStatus).agents[slot]


@contextmanager
def ray_program(*settings: str) -> Iterator[tuple[Program, Any]]:
    """A cluster on a Ray of its own, and what `up` printed; ended whatever became of it."""
    program = Program(f"t-{secrets.token_hex(3)}")
    started = program.run("up", "--chaos", *settings)
    if "Failed to register worker to Raylet" in started.stderr:
        # Ray's own processes were not ready for each other, which ends the process that asked.
        program.run("down", "--discard")
        started = program.run("up", "--chaos", *settings)
    assert started.returncode == 0, started.stderr
    try:
        yield program, started
    finally:
        if descriptor.descriptor_path(program.name).exists():
            program.ok("down", "--discard")


def session_of(pid: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def is_living(pid: int) -> bool:
    """Whether the process runs. One that has ended stays a zombie until its parent looks, which is
    the machine's own first process for those whose parent has ended too, and may take its time."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Losing and damaging shards


@contextmanager
def hidden_shards(cluster: LocalCluster, *slots: int) -> Iterator[None]:
    """Those agents answer, but have lost every shard, until the block ends."""
    memories = [cluster.nodes[slot].storage.shards for slot in slots]
    kept: list[dict[str, Any]] = []

    def hide() -> None:
        for memory in memories:
            kept.append(memory._stripes)
            memory._stripes = {}

    def show() -> None:
        for memory, stripes in zip(memories, kept, strict=True):
            assert not memory._stripes, "something was stored while the shards were hidden"
            memory._stripes = stripes
            memory._damaged.clear()  # nothing was, however much was missed

    on_loop(cluster, hide)
    try:
        yield
    finally:
        on_loop(cluster, show)


class ShardAt:
    """One shard where it lies, to be damaged and made good again."""

    def __init__(self, cluster: LocalCluster, stripe: Stripe, index: int) -> None:
        self._cluster = cluster
        memory: ShardStore = cluster.nodes[stripe.places[index].slot].storage.shards
        self._shard = memory._stripes[stripe.id][index]
        self._good = (self._shard.data, self._shard.checksums)

    @property
    def data(self) -> bytes:
        return bytes(self._good[0])

    @property
    def checksums(self) -> bytes:
        return self._good[1]

    def replace(self, data: bytes, checksums: bytes | None = None) -> None:
        def put() -> None:
            self._shard.data = memoryview(data)
            self._shard.checksums = self.checksums if checksums is None else checksums

        on_loop(self._cluster, put)

    def flip(self, bit: int) -> None:
        """Flips one bit of its data, counted from its start."""
        self.replace(flipped(self.data, bit))

    def restore(self) -> None:
        self.replace(*self._good)


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


# A bad network


class Relay:
    """Stands before an agent's gRPC door and its lanes: passes bytes on, holds them back, or
    refuses.

    The agent itself, its memory and its incarnation stay as they are. Use it in a `with`
    block: beyond that the agent cannot be reached.
    """

    def __init__(self, cluster: LocalCluster, slot: int) -> None:
        self._cluster = cluster
        self._node = cluster.nodes[slot]
        self._host, port = self._node.address.rsplit(":", 1)
        self._port = int(port)
        self._inner: dict[int, int] = {}  # what it passes on, from port to port
        self._lane_port = 0
        self._servers: list[asyncio.Server] = []
        self._cuts = 0
        self._flowing = asyncio.Event()
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        cluster.run(self._move_in())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def hold(self) -> None:
        """From now on the agent is silent: connections stay open and nothing passes."""
        on_loop(self._cluster, self._flowing.clear)

    def pass_on(self) -> None:
        on_loop(self._cluster, self._flowing.set)

    def cut(self) -> None:
        """Breaks all connections and refuses new ones."""
        self._cluster.run(self._cut())

    def mend(self) -> None:
        """Accepts connections again."""
        self._cluster.run(self._listen())

    async def _move_in(self) -> None:
        """The agent's doors move elsewhere, and the relay takes their places."""
        server = self._node.doors.server
        self._lane_port = server.lane_port
        await server.stop()
        address = await server.start(self._host)
        self._inner = {
            self._port: int(address.rsplit(":", 1)[1]),
            self._lane_port: server.lane_port,
        }
        # What the agent announces stays as it was: else nobody would take the relay for it.
        server.lane_port = self._lane_port
        server._lanes.address = format_address(self._host, self._lane_port)
        server._introductions.address = self._node.address
        self._flowing.set()
        await self._listen()

    async def _listen(self) -> None:
        self._servers = [
            await asyncio.start_server(partial(self._accept, inner, self._cuts), self._host, port)
            for port, inner in self._inner.items()
        ]

    async def _cut(self) -> None:
        self._cuts += 1
        for server in self._servers:
            server.close()
        self._flowing.set()
        for writer in self._writers:
            writer.transport.abort()
        for pipe in self._pipes:
            pipe.cancel()

    async def _accept(
        self, inner: int, cuts: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """`cuts` is how many there were when it began to listen: this runs some time after a
        connection was accepted, and one from before a cut must not outlive it."""
        from_agent, to_agent = await asyncio.open_connection(self._host, inner)
        if self._cuts != cuts:
            writer.transport.abort()
            to_agent.transport.abort()
            return
        self._writers |= {writer, to_agent}
        for source, sink in ((reader, to_agent), (from_agent, writer)):
            pipe = asyncio.create_task(self._pipe(source, sink))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.close()
