"""Schedules for the drain itself: real namespaces, the real drainer and chain, a store that fails.

A cluster is a log that all its voters apply, so that any of them can lead next; one may have got
its state by transfer and knows nothing of what was done before. Leaders lose their office in the
middle of whatever they do, and go on until they notice. Then everything dies, perhaps also the
store's machine, and a restore begins the next epoch, perhaps while the old cluster lives on. What
comes back must be the namespace at one of its positions, not before an announced horizon, nor
before what was acknowledged as durable; and every byte right.

    python -m tests.tier.drained --seed 7          # one schedule again
    python -m tests.tier.drained --schedules 1000  # many
"""

import argparse
import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from diskless import policy
from diskless.agent import restoring
from diskless.agent.leading.backlog import Backlog
from diskless.agent.leading.drainer import Drainer, Limits
from diskless.agent.ports import Uploaded
from diskless.agent.tiers import Tiers
from diskless.checksum import file_checksum
from diskless.config import TierSettings
from diskless.errors import DisklessError, NotLeader, StoreDown, Superseded
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace.replication.machine import NamespaceMachine
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import File
from diskless.namespace.views import tier_place
from diskless.tier.chain import Chain
from diskless.tier.manifest import Manifest
from diskless.tier.port import TierPort
from diskless.tier.restore import resuming
from diskless.tier.store import Metered
from tests.tier.faulty import Faults, FaultyStore
from tests.tier.loop import run
from tests.unit.test_namespace_world import walk

URI = FaultyStore.uri
PATHS = [f"/{a}/{b}" for a in "abm" for b in "12345"]
LIMITS = Limits(small_bytes=400, segment_bytes=150, whole_after=7, whole_after_bytes=1 << 20)
VOTERS = 3

Tree = dict[str, bytes]
Moment = tuple[Tree, Tree]
"""All files, of the tree and of snapshots; and those of them that some path is to keep."""


class Violation(AssertionError):
    """A promise was broken."""


class Cluster:
    """One epoch of a cluster."""

    drainer_type = Drainer
    backlog_type = Backlog
    """What mutants take the place of."""

    def __init__(self, rng: random.Random, store: FaultyStore, name: str) -> None:
        self.rng = rng
        self.store = store
        self.id = name
        self.machines = [NamespaceMachine() for _ in range(VOTERS)]
        self.bytes: dict[int, bytes] = {}
        self.moments: dict[int, Moment] = {}
        """What there was at each change."""
        self.term = 0
        self.op = 0
        self.time_ms = 1000
        self.sequence = 0
        self.session = 0
        self.announced = 0
        self.acknowledged = 0
        self.first: TierSettings | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.leader: Leader | None = None
        self.ended: list[Superseded] = []

    @property
    def state(self) -> NamespaceState:
        return self.machines[0].state

    def port(self) -> TierPort:
        return TierPort(Metered(self.store), cluster=self.id, name=self.id)  # type: ignore[arg-type]

    # -- its log ----------------------------------------------------------------

    def commit(self, command: c.Command) -> list[tuple[c.Result, ...]]:
        self.op += 1
        self.time_ms += self.rng.choice((0, 1, 700))
        data = c.encode(command)
        results = [
            machine.apply(self.op, self.time_ms, self.time_ms, data) for machine in self.machines
        ]
        if any(one != results[0] for one in results):
            raise Violation(f"voters disagree on {command}")
        tier = self.state.tier
        if tier.attached and tier.change not in self.moments:
            self.moments[tier.change] = moment_of(self.state, self.bytes)
        self.announced = max(self.announced, tier.horizon_change)
        return results

    def begin_log(self) -> None:
        self.session = self.commit(c.OpenSession("sim"))[0][0].number  # type: ignore[union-attr]

    def act(self) -> c.Command:
        """A client's next command."""
        rng = self.rng
        self.sequence += 1
        who = (self.session, self.sequence)
        path, other = rng.choice(PATHS), rng.choice(PATHS)
        kind = rng.random()
        if kind < 0.6:
            files = []
            for chosen in sorted({path, other}) if rng.random() < 0.2 else [path]:
                data = rng.randbytes(rng.choice((0, 3, 40, 120)))
                files.append(c.NewFile(chosen, len(data), file_checksum(data), data))
            return c.Commit((), (c.Put(*who, True, tuple(files)),))
        if kind < 0.7:
            return c.Delete(*who, rng.choice((path, path[:2], "/x")), True)
        if kind < 0.8:
            return c.Rename(*who, path, other, True)
        if kind < 0.85:
            return c.CreateSnapshot(*who, (path[:2],), f"s{rng.randrange(3)}")
        if kind < 0.88:
            return c.Clone(*who, rng.choice((path[:2], f"{path[:2]}/.snapshot/s1")), "/x")
        if kind < 0.9:
            return c.DeleteSnapshots(*who, path[:2], (f"s{rng.randrange(3)}",))
        if kind < 0.95 and self.state.tier.attached:
            value = rng.choice((policy.MEMORY, policy.ASYNC, policy.SYNC))
            return c.SetPolicy(rng.choice(("/m", "/b", "/m/1")), policy.DURABILITY, value)
        return c.Mkdirs(*who, f"{path[:2]}/d")

    async def clients(self) -> None:
        while True:
            await asyncio.sleep(self.rng.random())
            for _ in range(self.rng.choice((1, 1, 4))):
                command = self.act()
                last = self.state.last_file
                results = self.commit(command)
                self._remember(last)
                if any(isinstance(result, c.Done) for result in results[0]):
                    self.tasks.append(asyncio.create_task(self._acknowledge(command)))

    def _remember(self, last: int) -> None:
        for id_ in range(last + 1, self.state.last_file + 1):
            self.bytes[id_] = self.state.files[id_].record.inline or b""

    async def _acknowledge(self, command: c.Command) -> None:
        """Holds the answer as a leader does; a client asks again while it is not durable."""
        while (leader := self.leader) is not None:
            change = self.state.tier.change
            held = leader.backlog.after(command)
            if held is None:
                return
            try:
                await held
            except Superseded:
                return
            except DisklessError:
                await asyncio.sleep(0.1)
                continue
            self.acknowledged = max(self.acknowledged, change)
            return

    # -- its leaders --------------------------------------------------------------

    async def terms(self) -> None:
        while True:
            await self.elect()
            await asyncio.sleep(self.rng.choice((0.5, 4.0, 20.0)) * self.rng.random())

    async def elect(self) -> None:
        """Another voter leads; who led before is not told, or dies."""
        if self.leader is not None:
            self.leader.backlog.leave()
            if self.rng.random() < 0.5:
                self.leader.task.cancel()
        self.term += 1
        number = self.rng.randrange(VOTERS)
        if self.rng.random() < 0.2:
            self.machines[number] = transferred(self.machines[(number + 1) % VOTERS])
        self.leader = Leader(self, self.machines[number])

    async def die(self) -> None:
        leader, self.leader = self.leader, None
        tasks = [*self.tasks, *([leader.task] if leader else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Leader:
    """A drainer in its term: World and Source of it."""

    def __init__(self, cluster: Cluster, machine: NamespaceMachine) -> None:
        self.cluster = cluster
        self.machine = machine
        self.term = cluster.term
        port = cluster.port()
        self.port = port
        loop = asyncio.get_running_loop()
        self.backlog = cluster.backlog_type(world=self, now_s=loop.time)
        self.drainer = cluster.drainer_type(
            world=self,
            tiers=Tiers(
                open_tier=lambda uri, options: port,
                look=lambda: (self.state.tier.uri, self.state.tier.options),
            ),
            source=self,
            backlog=self.backlog,
            now_s=loop.time,
            first=cluster.first,
            limits=LIMITS,
            chance=cluster.rng,
        )
        self.task = asyncio.create_task(self._lead())
        cluster.tasks.append(self.task)

    async def _lead(self) -> None:
        await self.drainer.run()
        if self.drainer.superseded is not None and self.term == self.cluster.term:
            self.cluster.ended.append(self.drainer.superseded)

    @property
    def state(self) -> NamespaceState:
        return self.machine.state

    @property
    def journal(self) -> Any:
        return self.machine.journal

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]:
        cluster = self.cluster
        await asyncio.sleep(cluster.rng.random() * 0.02)
        if self.term != cluster.term:
            raise NotLeader("deposed")
        results = cluster.commit(command)[0]
        await asyncio.sleep(cluster.rng.random() * 0.02)
        if self.term != cluster.term:
            raise NotLeader("deposed")
        return results

    async def read(self, record: FileRecord) -> bytes:
        await asyncio.sleep(self.cluster.rng.random() * 0.01)
        if record.inline is not None:
            return record.inline
        place = tier_place(self.state.tier, record.id)
        assert place is not None, f"file {record.id} is nowhere"
        size = record.size
        return bytes(await self.port.read(place, file=record.id, size=size, start=0, stop=size))

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        files = [(record.id, await self.read(record)) for record in records]
        return await self.port.upload(files, number=number, name=name)


def transferred(donor: NamespaceMachine) -> NamespaceMachine:
    """A voter that got its state from another: it has no journal of what was before."""
    fresh = NamespaceMachine()
    for chunk in donor.snapshot():
        fresh.restore(chunk)
    return fresh


def moment_of(state: NamespaceState, known: dict[int, bytes]) -> Moment:
    every: Tree = {}
    durable: Tree = {}
    roots = [("", "/", state.tree.root)]
    roots += [(f"#{one.id}", one.path, one.root) for one in state.history.by_id.values()]
    kept: set[int] = set()
    seen: dict[str, int] = {}
    for name, top, root in roots:
        for path, node in walk(root):
            if isinstance(node, File):
                full = f"{top.rstrip('/')}{path}"
                asked = state.policies.durability(full, default=policy.ASYNC)
                seen[f"{name}{full}"] = node.record.id
                if asked != policy.MEMORY or not node.record.size:
                    kept.add(node.record.id)
    for path, id_ in seen.items():
        inline = state.files[id_].record.inline
        every[path] = known.get(id_, inline or b"")
        if id_ in kept:
            durable[path] = every[path]
    return every, durable


# -- a schedule -------------------------------------------------------------------------


async def restore(rng: random.Random, store: FaultyStore, before: Cluster, number: int) -> Cluster:
    """The next epoch's cluster, checked against what the one before has been."""
    after = Cluster(rng, store, f"cluster-{number}")
    while True:
        chain = Chain(Metered(store), cluster=after.id, name=after.id, epoch=0)  # type: ignore[arg-type]
        try:
            won = await chain.take_over(
                resuming(chain), round_id=lambda: f"{rng.getrandbits(64):016x}"
            )
            break
        except StoreDown:
            await asyncio.sleep(1)
    await load(after, before, won)
    await check(store, before, after, won.op)
    return after


async def load(after: Cluster, before: Cluster, won: Manifest) -> None:
    after.store.faults = Faults()  # whoever cannot read begins anew, which finds nothing more
    for machine in after.machines:
        await restoring.restore(
            machine.state, after.port(), uri=URI, number=won.number, epoch=won.epoch,
            options=before.state.tier.options, rewound=False,
        )  # fmt: skip


async def check(store: FaultyStore, before: Cluster, after: Cluster, change: int) -> None:
    if change < before.announced:
        raise Violation(f"restored {change}, announced {before.announced}")
    if change < before.acknowledged:
        raise Violation(f"restored {change}, acknowledged {before.acknowledged}")
    if change not in before.moments:
        raise Violation(f"restored {change}, which is no position that there was")
    port = after.port()
    for id_ in [id_ for id_, file in after.state.files.items() if file.record.size]:
        record = after.state.files[id_].record
        place = tier_place(after.state.tier, id_)
        if place is None:
            raise Violation(f"file {id_} is in no segment")
        data = await port.read(place, file=id_, size=record.size, start=0, stop=record.size)
        if file_checksum(data) != record.checksum:
            raise Violation(f"file {id_} is not what it was")
        after.bytes[id_] = bytes(data)
    shown = moment_of(after.state, after.bytes)
    every, durable = before.moments[change]
    # What was in the tier before its path asked for memory may still be there.
    wrong = [path for path, data in shown[0].items() if every.get(path) != data]
    missing = [path for path in durable if path not in shown[0]]
    if wrong or missing:
        raise Violation(f"change {change}: wrong {wrong}, missing {missing}")
    after.time_ms = before.time_ms
    after.moments[change] = after.moments[after.state.tier.change] = shown


async def schedule(seed: int, *, epochs: int = 3) -> dict[str, int]:
    rng = random.Random(seed)
    store = FaultyStore(rng, files=rng.random() < 0.5)
    cluster = Cluster(rng, store, "cluster-0")
    cluster.first = TierSettings(uri=URI)
    counts = {"restored": 0, "superseded": 0}
    loop = asyncio.get_running_loop()
    for number in range(1, epochs + 1):
        cluster.begin_log()
        cluster.tasks += [loop.create_task(cluster.clients()), loop.create_task(cluster.terms())]
        store.faults = Faults(
            refused=rng.choice((0, 0.1, 0.4)),
            lost=rng.choice((0, 0.1, 0.3)),
            late=rng.choice((0, 0.05)),
            slow=rng.choice((0, 0.1)),
        )
        await asyncio.sleep(rng.random() * 40)
        if rng.random() < 0.3:
            store.away = True
            await asyncio.sleep(rng.random() * 10)
            store.away = False
        if store.objects and not any(name.startswith("chain/") for name in store.objects):
            store.faults = Faults()
        while not any(name.startswith("chain/") for name in store.objects):
            store.faults = Faults()
            await asyncio.sleep(5)
        lives_on = rng.random() < 0.3
        if not lives_on:
            await cluster.die()
            if store.files and rng.random() < 0.5:
                store.crash()
        if lives_on:
            following = await overlap(rng, store, cluster, number)
            counts["superseded"] += bool(cluster.ended)
        else:
            following = await restore(rng, store, cluster, number)
        counts["restored"] += 1
        cluster = following
    await cluster.die()
    return counts


async def overlap(rng: random.Random, store: FaultyStore, before: Cluster, number: int) -> Cluster:
    """A restore while the old cluster lives: it stops, says why, and acknowledges nothing more."""
    after = Cluster(rng, store, f"cluster-{number}")
    chain = Chain(Metered(store), cluster=after.id, name=after.id, epoch=0)  # type: ignore[arg-type]
    while True:
        try:
            won = await chain.take_over(
                resuming(chain), round_id=lambda: f"{rng.getrandbits(64):016x}"
            )
            break
        except StoreDown:
            await asyncio.sleep(1)
    await load(after, before, won)
    for _ in range(200):
        await asyncio.sleep(1)
        if before.ended:
            break
    else:
        raise Violation("the old cluster goes on")
    await before.die()
    await check(store, before, after, won.op)
    return after


def main() -> None:
    logging.disable(logging.ERROR)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=1)
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.schedules):
        print(f"seed {seed}", flush=True)
        print(run(schedule(seed)))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
