"""A leader among many agents and clients, in one thread, without sockets, in made-up time.

The leader is a real agent: its gateway, handlers, packer, voter and all that a leader does. The
other voters are real voters; the other agents answer as agents without news do. Clients shake
hands and send frames. Messages are made and read as ever, and handed over instead of sent.

Time is what the leader has worked, and what it waited: when it has nothing to do the clock jumps
to the next timer. What the others work costs no time, as if each had a machine of its own. So the
leader is as busy, and its rounds are as full, as its own CPU makes them, on a busy machine too.
What the kernel takes for a message is not in it.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.bench.frame_client import FrameClient, Tally
from diskless.bench.made_up_time import MadeUpLoop, Watch
from diskless.config import MIB, ClusterSettings
from diskless.errors import Unavailable, error_from_wire
from diskless.identity.claims import Keyring, make_root
from diskless.model import Extent, Place, Stripe, slot_name
from diskless.namespace import commands as c
from diskless.node import Node, NodeSettings
from diskless.placement import place
from diskless.rpc.peers import Peers
from diskless.rpc.services import MEMBERSHIP, Service
from diskless.rpc.v1 import common_pb2, membership_pb2, shards_pb2

LEADER = 0
CLUSTER_ID = "simulated"
DATA_SHARDS, PARITY_SHARDS = 4, 2
STRIPE_BYTES = MIB
TRIP_S = 0.0002
"""From one agent to another."""
MEMORY_BYTES = 64 << 30
MEMORY_KINDS = 24
SHARDS_TOLD = 1 << 40
"""By agents that are never short of any."""
SUSPECT_S = 2.0
STRIPES_PER_COMMAND = 100
CLIENTS_AT_ONCE = 100
"""That shake hands together: strangers are few."""
JOIN_TIMEOUT_S = 60.0
LOOK_S = 1.0
WALL_BEGAN_MS = 1_700_000_000_000
SIZE = 1000
"""Of a file that a client commits."""


class HandingPeers(Peers):
    """The leader's streams: what would be sent on them is handed over."""

    def __init__(self, *, others: "Others", **options: Any) -> None:
        super().__init__(**options)
        self._others = others

    async def _call(
        self,
        service: Service,
        slot: int,
        address: str,
        call: Any,
        *,
        payload: Any = None,
        timeout_s: float,
    ) -> tuple[Any, memoryview]:
        data = service.calls.join([(call, payload)])
        told = await self._others.answer(service, slot, data)
        ((answer, rest),) = service.answers.split(told)
        if answer.HasField("refusal"):
            raise error_from_wire(answer.refusal.reason, answer.refusal.message)
        return answer, rest

    def post(self, slot: int, address: str, message: bytes) -> None:
        self._others.hand(LEADER, slot, message)


class Others:
    """All agents but the leader: voters that vote, and agents that have nothing to tell."""

    def __init__(self, settings: ClusterSettings, watch: Watch, tally: Tally) -> None:
        self.voters: dict[int, Any] = {}
        """Who takes messages of voters, by slot, the leader among them."""
        self.silent: set[int] = set()
        self._settings = settings
        self._watch = watch
        self._tally = tally

    def begin(self, leader: Node, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
        """The other voters, which have formed a cluster with it."""
        tasks = []
        self.voters[LEADER] = leader.replica
        for slot in range(1, self._settings.voters):
            seeds = addresses(self._settings)
            roster = Roster(slot=slot, seeds=seeds, now_s=loop.time, suspect_s=SUSPECT_S)
            voter = self.voters[slot] = Replica(
                slot=slot,
                settings=self._settings,
                roster=roster,
                peers=_Post(partial(self.hand, slot)),
                lead=_nobody_leads_here,
                wall_ms=leader.settings.wall_ms,
                clock_ms=leader.settings.clock_ms,
            )
            voter.form(CLUSTER_ID)
            tasks.append(asyncio.ensure_future(voter.run()))
        return tasks

    def hand(self, sender: int, slot: int, message: bytes) -> None:
        """A voter's message, which arrives a little later."""
        if LEADER in (sender, slot):
            self._tally.note("voters", len(message))
        asyncio.get_running_loop().call_later(TRIP_S, self._arrive, sender, slot, message)

    def _arrive(self, sender: int, slot: int, message: bytes) -> None:
        if slot == LEADER:
            self.voters[slot].receive(sender, address(sender), message)
        elif slot not in self.silent:
            with self._watch.others():
                self.voters[slot].receive(sender, address(sender), message)

    async def answer(self, service: Service, slot: int, data: bytes) -> bytes:
        """Raises Unavailable of an agent that is gone."""
        kind = service.method.split("/")[1].rpartition(".")[2].lower()
        self._tally.note(kind, len(data))
        await asyncio.sleep(2 * TRIP_S)
        if slot in self.silent:
            raise Unavailable(f"{slot_name(slot)} is gone")
        with self._watch.others():
            answer = _pulse(slot, data) if service is MEMBERSHIP else _shards(service, data)
            told = service.answers.join([(answer, None)])
        self._tally.note(kind, len(told))
        return told


class _Post:
    def __init__(self, hand: Callable[[int, bytes], None]) -> None:
        self._hand = hand

    def post(self, slot: int, address: str, message: bytes) -> None:
        self._hand(slot, message)


def _nobody_leads_here() -> Any:
    raise AssertionError("the leader changed: the simulation is of one leader")


def _pulse(slot: int, data: bytes) -> membership_pb2.BeatAnswer:
    """As of an agent that knows all that it was told; its account of memory changes never."""
    ((beat, _),) = MEMBERSHIP.calls.split(data)
    kinds = {f"kind-{n}": 1000 * n for n in range(MEMORY_KINDS)}
    return membership_pb2.BeatAnswer(
        boot=boot(slot),
        roster_version=beat.roster_version,
        shards=SHARDS_TOLD,
        memory=None if beat.memory_version else kinds,
        memory_version=1,
        bytes_max=MEMORY_BYTES,
        holds=[membership_pb2.Hold(slot=slot, incarnation=1, counter=1)],
        loop_lag=membership_pb2.LoopLag(p50_ms=0.1, p99_ms=1.0, max_ms=2.0),
        revoked_version=beat.revoked_upto,
        grades_mark=beat.grades_mark,
        traffic=membership_pb2.Traffic(commits=[0] * 16, bytes_written=1, bytes_read=1),
    )


def _shards(service: Service, data: bytes) -> Any:
    ((call, _),) = service.calls.split(data)
    match call.WhichOneof("call"):
        case "store":
            return shards_pb2.ShardAnswer(stored=shards_pb2.ShardStored(incarnation=1))
        case "miss":
            return shards_pb2.ShardAnswer(missed=shards_pb2.ShardsMissed(shards=0))
        case "drop" | "drop_superseded":
            return shards_pb2.ShardAnswer(dropped=shards_pb2.StripesDropped(shards=0))
        case "rebuild":
            made = [
                shards_pb2.RebuiltShard(index=t.index, slot=t.slot, incarnation=1)
                for t in call.rebuild.targets
            ]
            return shards_pb2.ShardAnswer(rebuilt=shards_pb2.ShardsRebuilt(shards=made))
    return service.answer(refusal=common_pb2.Refusal(reason="BadRequest", message="not played"))


def address(slot: int) -> str:
    return f"10.0.{slot // 250}.{slot % 250 + 1}:7000"


def addresses(settings: ClusterSettings) -> dict[int, str]:
    return {slot: address(slot) for slot in range(settings.agents)}


def boot(slot: int) -> str:
    return f"boot-{slot}"


class World:
    """A leader, its cluster and its clients; use `run` to have some of their life."""

    def __init__(self, *, agents: int) -> None:
        self.settings = ClusterSettings(
            name="simulated",
            agents=agents,
            data_shards=DATA_SHARDS,
            parity_shards=PARITY_SHARDS,
            memory_bytes=MEMORY_BYTES,
        )
        self.watch = Watch()
        self.tally = Tally()
        self.clients: list[FrameClient] = []
        self.leader: Node
        self._key = make_root().hex()
        self.credential = Keyring.from_hex(CLUSTER_ID, self._key).admin()
        self._stripes = 0

    def run(self, life: Callable[["World"], Awaitable[Any]]) -> Any:
        """What `life` gives; it begins when all agents have joined."""
        with asyncio.Runner(loop_factory=lambda: MadeUpLoop(self.watch)) as runner:
            return runner.run(self._live(life))

    async def _live(self, life: Callable[["World"], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory(prefix="diskless-bench-") as directory:
            self.others = Others(self.settings, self.watch, self.tally)
            self.leader = Node(
                NodeSettings(
                    cluster=self.settings,
                    cluster_id=CLUSTER_ID,
                    key=self._key,
                    slot=LEADER,
                    socket_path=os.path.join(directory, "gateway"),
                    wall_ms=lambda: WALL_BEGAN_MS + int(1000 * loop.time()),
                    now_s=loop.time,
                    clock_ms=lambda: int(1000 * loop.time()),
                ),
                connect=partial(HandingPeers, others=self.others),
            )
            leader = self.leader
            leader.address = address(LEADER)
            await leader.doors.gateway.start(leader.settings.socket_path, "127.0.0.1")
            sweeper = leader.storage.sweeper
            tasks = [asyncio.ensure_future(work) for work in
                     (leader.replica.run(), leader.lag.run(), sweeper.run())]  # fmt: skip
            with self.watch.others():
                tasks += self.others.begin(leader, loop)
            try:
                await leader.form(addresses(self.settings))
                await self._join()
                return await life(self)
            finally:
                for task in tasks:
                    task.cancel()
                await leader.stop()

    async def _join(self) -> None:
        for slot in range(1, self.settings.agents):
            at = address(slot)
            await self.execute(c.AgentUp(slot, boot(slot), at, at, "/s", f"host-{slot}", "", 1))
        await self.leader.sees(self.settings.agents, JOIN_TIMEOUT_S)
        # It really has a store of shards, which is empty: whatever lay there would be missed.
        await self.execute(c.Drain(LEADER, True))

    async def execute(self, command: c.Command) -> c.Done:
        done = await self.leader.namespace.run(command)
        assert isinstance(done, c.Done)
        return done

    async def hold(self, stripes: int) -> None:
        """So many stripes of one file each, placed as writers place them."""
        session = (await self.execute(c.OpenSession())).number
        numbers = range(self._stripes, self._stripes + stripes)
        self._stripes += stripes
        for sequence, first in enumerate(numbers[::STRIPES_PER_COMMAND], start=1):
            with self.watch.others():
                commit = self._stripe_files(
                    session, sequence, range(first, min(first + STRIPES_PER_COMMAND, numbers.stop))
                )
            await self.execute(commit)

    def _stripe_files(self, session: int, sequence: int, numbers: range) -> c.Commit:
        agents = [a for a in self.leader.roster.agents.values() if a.slot != LEADER]
        stripes, files = [], []
        for number in numbers:
            slots = place(agents, count=DATA_SHARDS + PARITY_SHARDS, turn=number)
            places = tuple(Place(slot, 1) for slot in slots)
            name = f"1.1.{number + 1}"
            stripes.append(Stripe(name, DATA_SHARDS, PARITY_SHARDS, STRIPE_BYTES, places))
            extents = (Extent(name, 0, STRIPE_BYTES),)
            path = f"/held/{number // 1000}/{number}"
            files.append(c.NewFile(path, STRIPE_BYTES, 0, None, extents))
        return c.Commit(tuple(stripes), (c.Put(session, sequence, False, tuple(files)),))

    async def welcome(self, clients: int) -> None:
        """So many more clients, each with a session and a file."""
        data = bytes(SIZE)
        for first in range(0, clients, CLIENTS_AT_ONCE):
            fresh = [
                self._client(len(self.clients) + n + 1)
                for n in range(min(CLIENTS_AT_ONCE, clients - first))
            ]
            await asyncio.gather(*(client.arrive() for client in fresh))
            await asyncio.gather(*(client.put(data) for client in fresh))
            self.clients += fresh

    def _client(self, number: int) -> FrameClient:
        return FrameClient(
            number, self.leader.doors.gateway, self.credential, self.watch, self.tally
        )

    async def lose(self, slot: int) -> None:
        """An agent's process ends; returns when all that it held is whole again."""
        self.others.silent.add(slot)
        state = self.leader.replica.state
        while state.agents[slot].up or state.health.shards_placed[slot]:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
