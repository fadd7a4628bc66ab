"""Where one cluster ends: the leader of many agents and clients, simulated (`simulated.py`).

What it costs is the CPU of the leader's loop, but for the kernel's part of messages: what that
is, a message by a socket tells.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import NamedTuple

import uvloop

from diskless.bench import works
from diskless.bench.clusters import in_process
from diskless.bench.frame_client import FrameClient
from diskless.bench.recorder import Recorder, Say
from diskless.bench.simulated import DATA_SHARDS, LEADER, PARITY_SHARDS, SIZE, World
from diskless.bench.sizes import Sizes
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.placement import place

SYSTEM = works.SIMULATED
SETTLE_S = 5.0
"""Of made-up time, after which nothing of the beginning is left to do."""
CHANGES = 10
REPORTS = 20
PLACED = 500
ROUND_TRIPS = 20_000
CROWD = 64
"""Clients of those that commit all the time, to find out how much is possible."""
STEP_S = 0.001
MESSAGE = bytes(200)

Rows = list[tuple[str, float, str]]
"""Work, value and unit of each figure."""
Figures = list[tuple[str, float, str, float | None]]
"""The same with the size."""


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("scale")
    record.add(works.SCALE_SOCKET, SYSTEM, 1e6 * in_process(_socket_message_s), "µs")
    most = max(sizes.scale_agents)
    for agents in sorted(sizes.scale_agents):
        say(f"{agents} agents")
        _keep(in_process(_of_agents, agents, sizes), record)
    for clients in sorted(sizes.scale_clients):
        say(f"{most} agents and {clients} clients")
        _keep(in_process(_of_clients, most, clients, sizes), record)
    return record


def _keep(found: Figures, record: Recorder) -> None:
    for work, value, unit, size in found:
        record.add(work, SYSTEM, value, unit, size=size)


# What agents cost.


def _of_agents(agents: int, sizes: Sizes) -> Figures:
    found: Figures = World(agents=agents).run(lambda world: _watch_agents(world, sizes))
    return found


async def _watch_agents(world: World, sizes: Sizes) -> Figures:
    await world.hold(sizes.scale_stripes)
    await asyncio.sleep(SETTLE_S)
    rows: Rows = []
    for _ in range(sizes.repetitions):
        rows += await _idle_rows(world, sizes)
    rows += await _lost_rows(world, sizes)
    return [(work, value, unit, float(world.settings.agents)) for work, value, unit in rows]


async def _idle_rows(world: World, sizes: Sizes) -> Rows:
    idle = await _spent(world, lambda: asyncio.sleep(sizes.scale_s))
    change = await _spent(world, lambda: _change(world))
    report = await _spent(world, lambda: _report(world))
    return [
        (works.SCALE_IDLE, 1000 * idle.cpu_each_s, "ms/s"),
        (works.SCALE_IDLE_EACH, 1e6 * idle.cpu_each_s / world.settings.agents, "µs/s"),
        (works.SCALE_IDLE_MESSAGES, idle.messages_each_s, "1/s"),
        (works.SCALE_CHANGE, 1000 * change.cpu_s / CHANGES, "ms"),
        (works.SCALE_CHANGE_BYTES, change.bytes / CHANGES, "bytes"),
        (works.SCALE_REPORT, 1000 * report.cpu_s / REPORTS, "ms"),
        (works.SCALE_PLACE, 1e6 * _place_s(world), "µs"),
    ]


def _place_s(world: World) -> float:
    agents = list(world.leader.roster.agents.values())
    began_s = time.thread_time()
    for turn in range(PLACED):
        place(agents, count=DATA_SHARDS + PARITY_SHARDS, turn=turn)
    return (time.thread_time() - began_s) / PLACED


async def _lost_rows(world: World, sizes: Sizes) -> Rows:
    """From the end of an agent's process until what it held is whole again."""
    idle = await _spent(world, lambda: asyncio.sleep(sizes.scale_s))
    lost = await _spent(world, lambda: world.lose(world.settings.agents - 1))
    return [
        (works.SCALE_LOST, 1000 * lost.cpu_each_s, "ms/s"),
        (works.SCALE_LOST_MESSAGES, lost.more_messages(idle), "messages"),
    ]


async def _change(world: World) -> None:
    """An agent drains, or does no more, until all others know."""
    for number in range(CHANGES):
        await world.execute(c.Drain(LEADER, number % 2 == 0))
        version = world.leader.replica.state.roster_version
        pulses = world.leader.leading.monitor.pulses
        while any(pulse.roster_version < version for pulse in pulses.values()):  # noqa: ASYNC110
            await asyncio.sleep(STEP_S)


async def _report(world: World) -> None:
    for _ in range(REPORTS):
        await world.leader.replica.query(q.Report())


# What clients cost.


def _of_clients(agents: int, clients: int, sizes: Sizes) -> Figures:
    found: Figures = World(agents=agents).run(lambda world: _watch_clients(world, clients, sizes))
    return found


async def _watch_clients(world: World, clients: int, sizes: Sizes) -> Figures:
    await asyncio.sleep(SETTLE_S)
    without = await _spent(world, lambda: asyncio.sleep(sizes.scale_s))
    arrival = await _spent(world, lambda: world.welcome(clients))
    await asyncio.sleep(SETTLE_S)
    rows = [(works.SCALE_ARRIVAL, 1000 * arrival.cpu_s / clients, "ms")]
    for _ in range(sizes.repetitions):
        rows += await _load_rows(world, without, sizes)
    return [(work, value, unit, float(clients)) for work, value, unit in rows]


async def _load_rows(world: World, without: "_Spent", sizes: Sizes) -> Rows:
    """`without` is what was spent before there were clients."""
    data, count = bytes(SIZE), sizes.scale_rate * sizes.scale_s

    async def put(client: FrameClient) -> None:
        await client.put(data)

    idle = await _spent(world, lambda: asyncio.sleep(sizes.scale_s))
    commits = await _spent(world, lambda: _evenly(world, put, count, sizes.scale_rate))
    opened = await _spent(world, lambda: _evenly(world, FrameClient.open, count, sizes.scale_rate))
    crowd = await _spent(world, lambda: _crowd(world, put, count))
    return [
        (works.SCALE_CLIENTS_IDLE, 1000 * (idle.cpu_each_s - without.cpu_each_s), "ms/s"),
        (works.SCALE_COMMIT, 1000 * commits.more_cpu_s(idle) / count, "ms"),
        (works.SCALE_COMMIT_MESSAGES, commits.more_messages(idle) / count, "messages"),
        (works.SCALE_OPEN, 1000 * opened.more_cpu_s(idle) / count, "ms"),
        (works.SCALE_COMMITS_MOST, count / crowd.took_s, "1/s"),
    ]


Act = Callable[[FrameClient], Awaitable[None]]


async def _evenly(world: World, act: Act, count: int, rate: int) -> None:
    """Clients in turn, so many in a second, whether or not the last one has its answer."""
    loop = asyncio.get_running_loop()
    began_s, sent, turn = loop.time(), 0, cycle(world.clients)
    acting: set[asyncio.Future[None]] = set()
    while sent < count:
        due = min(rate * (loop.time() - began_s) + 1, count)
        while sent < due:
            task = asyncio.ensure_future(act(next(turn)))
            acting.add(task)
            task.add_done_callback(acting.discard)
            sent += 1
        await asyncio.sleep(STEP_S)
    await asyncio.gather(*acting)


async def _crowd(world: World, act: Act, count: int) -> None:
    """Some clients act again and again, each as soon as it has its answer."""
    turns = iter(range(count))

    async def again(client: FrameClient) -> None:
        for _ in turns:
            await act(client)

    await asyncio.gather(*map(again, world.clients[:CROWD]))


# Measuring.


class _Spent(NamedTuple):
    """What the leader spent, or had spent so far, in made-up seconds."""

    cpu_s: float
    took_s: float
    messages: int
    bytes: int

    @property
    def cpu_each_s(self) -> float:
        return self.cpu_s / self.took_s

    @property
    def messages_each_s(self) -> float:
        return self.messages / self.took_s

    def more_cpu_s(self, idle: "_Spent") -> float:
        return self.cpu_s - idle.cpu_each_s * self.took_s

    def more_messages(self, idle: "_Spent") -> float:
        return self.messages - idle.messages_each_s * self.took_s


async def _spent(world: World, work: Callable[[], Awaitable[object]]) -> _Spent:
    before = _so_far(world)
    await work()
    return _Spent(*(now - then for now, then in zip(_so_far(world), before, strict=True)))


def _so_far(world: World) -> _Spent:
    return _Spent(
        world.watch.leader_s(),
        asyncio.get_running_loop().time(),
        world.tally.messages.total(),
        world.tally.bytes.total(),
    )


def _socket_message_s() -> float:
    """CPU, of the process and of the kernel for it, of sending or getting a small message."""

    class Echo(asyncio.Protocol):
        left = ROUND_TRIPS

        def __init__(self, over: asyncio.Future[None]) -> None:
            self._over = over

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            Echo.left -= 1
            if Echo.left > 0:
                self._transport.write(data)  # type: ignore[attr-defined]
            elif not self._over.done():
                self._over.set_result(None)

    async def talk() -> float:
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        server = await loop.create_server(lambda: Echo(over), "127.0.0.1", 0)
        async with server:
            where = server.sockets[0].getsockname()
            transport, _ = await loop.create_connection(lambda: Echo(over), *where)
            began_s = time.thread_time()
            transport.write(MESSAGE)
            await over
            return (time.thread_time() - began_s) / (2 * ROUND_TRIPS)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(talk())
