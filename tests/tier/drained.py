"""Schedules for the drain itself: real namespaces, the real drainer and chain, a store that fails.

A cluster is a log that all its voters apply, so that any of them can lead next; one may have got
its state by transfer and knows nothing of what was done before. Leaders lose their office in the
middle of whatever they do, and go on until they notice. On the way they evict whatever they like,
and of that every byte must be in the tier when they die. Now and then more agents die than files
survive: what the tier has of them is left to it, as the salvager does, and must be right forever;
of the rest some may be lost, and nothing else. Then everything dies, perhaps also the
store's machine, and a restore begins the next epoch, perhaps while the old cluster lives on. What
comes back must be the namespace at one of its positions, not before an announced horizon, nor
before what was acknowledged as durable, nor before a plan of a query that `barrier` owes it
(`tests.tier.planned`); and every byte right.

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
from diskless.agent.ports import Stretch, Uploaded
from diskless.agent.tiers import Tiers
from diskless.checksum import file_checksum
from diskless.config import TierSettings
from diskless.errors import (
    DamagedTier,
    DisklessError,
    NotLeader,
    StoreDown,
    Superseded,
    TooFewShards,
)
from diskless.model import FileRecord
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.replication.machine import NamespaceMachine
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import File
from diskless.namespace.views import tier_place
from diskless.tier import sweep
from diskless.tier.chain import Chain
from diskless.tier.manifest import Manifest
from diskless.tier.port import TierPort
from diskless.tier.restore import resuming
from diskless.tier.store import Metered
from tests.tier.faulty import Faults, FaultyStore
from tests.tier.loop import run
from tests.tier.parts import Parts
from tests.tier.planned import Debts, Planned
from tests.unit.test_namespace_world import walk

URI = FaultyStore.uri
PATHS = [f"/{a}/{b}" for a in "abm" for b in "12345"]
LIMITS = Limits(small_bytes=400, segment_bytes=150, whole_after=7, whole_after_bytes=1 << 20)
VOTERS = 3
TRIES_MAX = 20
"""Of a restore, while the store fails as it likes."""

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
        self.durable: dict[int, set[int]] = {}
        """Files of each that the tier is to have."""
        self.shown: dict[int, dict[str, int]] = {}
        """Which file each path led to."""
        self.beyond_k: set[int] = set()
        """Files of which more shards are gone than they survive."""
        self.gone: set[int] = set()
        """Those of them that the tier did not have then: nobody need ever see them again."""
        self.lost_before = 0
        self.mark_term = 0
        self.violations: list[str] = []
        """Found where a drainer would take them for a failed round, or a client just end."""
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
        self.planned = Planned(rng)

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
            self.violations.append(f"voters disagree on {command}")
        tier = self.state.tier
        if tier.attached and tier.change not in self.moments:
            shown, kept = files_of(self.state)
            self.moments[tier.change] = moment_of(self.state, self.bytes, shown, kept)
            self.durable[tier.change] = {i for i in kept if self.state.files[i].record.size}
            self.shown[tier.change] = shown
        if isinstance(command, c.Mark):
            self.mark_term = self.term
        if isinstance(command, c.Horizon):
            self._check_horizon()
        self.planned.look(self.state)
        self.announced = max(self.announced, tier.horizon_change)
        return results

    def _check_horizon(self) -> None:
        state = self.state
        within = self.durable.get(state.tier.horizon_change, set())
        within = {id_ for id_ in within if id_ in state.files} - self.gone
        unknown = [id_ for id_ in within if state.tier.place(id_) is None]
        if unknown:
            self.violations.append(f"files {unknown} are within the horizon: nobody knows where")
        if state.marked is not None and self.mark_term != self.term:
            self.violations.append("the mark of an earlier leader is still held")

    def begin_log(self) -> None:
        self.session = self.commit(c.OpenSession("sim"))[0][0].number  # type: ignore[union-attr]

    def act(self) -> c.Command:
        """A client's next command."""
        rng = self.rng
        self.sequence += 1
        who = (self.session, self.sequence)
        if rng.random() < 0.4:
            return self.planned.act(self.state, who)
        path, other = rng.choice(PATHS), rng.choice(PATHS)
        kind = rng.random()
        if kind < 0.6:
            files = []
            for chosen in sorted({path, other}) if rng.random() < 0.2 else [path]:
                data = rng.randbytes(rng.choice((0, 3, 40, 120, 700)))
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
                    debts = self.planned.debts(self.state, command)
                    self.tasks.append(asyncio.create_task(self._acknowledge(command, debts)))
            if self.rng.random() < 0.2:
                self.tasks.append(asyncio.create_task(self._start_again()))

    def _remember(self, last: int) -> None:
        for id_ in range(last + 1, self.state.last_file + 1):
            self.bytes[id_] = self.state.files[id_].record.inline or b""

    async def _start_again(self) -> None:
        """A query runs the plan that it finds, as soon as it may read it."""
        while (leader := self.leader) is not None:
            path = self.planned.plan_to_run(self.state)
            if not path:
                return
            change = leader.backlog.before_answer(q.Open(path))
            if not change:
                if leader.backlog._is_barrier(path):
                    self.planned.owe(self.planned.since[path], f"{path} was run")
                return
            try:
                await leader.backlog.reach(change, 1.2)
            except Superseded:
                return
            except DisklessError:
                pass
            await asyncio.sleep(0.1)  # and asks again, whatever it heard

    async def _acknowledge(self, command: c.Command, debts: Debts) -> None:
        """Holds the answer as a leader does; a client asks again while it is not durable."""
        while (leader := self.leader) is not None:
            change = self.state.tier.change
            held = leader.backlog.after(command)
            if held is None:
                self.planned.acknowledged(self.state, debts)
                return
            try:
                await held
            except Superseded:
                return
            except DisklessError:
                await asyncio.sleep(0.1)
                continue
            self.planned.acknowledged(self.state, debts)
            if leader.backlog._asks(command, policy.SYNC):
                self.acknowledged = max(self.acknowledged, change)
            return

    async def losses(self) -> None:
        """More than k agents die at once, and take some files' bytes with them."""
        while True:
            await asyncio.sleep(15 * self.rng.random())
            here = [id_ for id_, file in self.state.files.items() if file.record.inline]
            lost = set(self.rng.sample(here, min(len(here), self.rng.choice((1, 3, 10)))))
            self.gone |= {id_ for id_ in lost if not self.state.tier.is_safe(id_)}
            self.beyond_k |= lost
            leader = self.leader
            if leader is not None and self.rng.random() < 0.8:  # else it is too late
                with suppress(NotLeader):
                    await leader.salvage(lost)

    def compare(self, before: "Cluster", change: int) -> None:
        """Raises Violation for what else is not as it was at a change, of one kind of clusters."""

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
        cluster.tasks += [self.task, asyncio.create_task(self._evict())]

    async def _lead(self) -> None:
        await self.drainer.until_superseded()
        if self.drainer.superseded is not None and self.term == self.cluster.term:
            self.cluster.ended.append(self.drainer.superseded)

    async def _evict(self) -> None:
        """Any files, whether or not the tier has them: the namespace decides."""
        rng = self.cluster.rng
        with suppress(NotLeader):
            while True:
                await asyncio.sleep(3 * rng.random())
                ids = rng.sample(sorted(self.state.files), min(len(self.state.files), 4))
                rows = tuple((id_, self.state.files[id_].record.layout) for id_ in ids)
                await self.execute(c.Evict(rows, returns=rng.random() < 0.3))

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
            if record.id not in self.cluster.beyond_k:
                return record.inline
            if not self.state.tier.is_safe(record.id):
                raise TooFewShards("more is lost than it survives")
        return await read_all(self.port, self.state, record)

    async def salvage(self, ids: set[int]) -> None:
        """Leaves files to the tier, as far as the namespace lets go of them."""
        files = [file for id_ in sorted(ids) if (file := self.state.files.get(id_))]
        rows = tuple((file.record.id, file.record.layout) for file in files)
        await self.execute(c.Evict(rows, returns=True))

    async def upload(self, records: Sequence[FileRecord], *, number: int, name: str) -> Uploaded:
        files = [Stretch(record.id, await self.read(record)) for record in records]
        return await self.port.upload(files, number=number, name=name)

    def begin_parts(self) -> Parts:
        rng = self.cluster.rng
        return Parts(self.read, self.port, lambda span: rng.random() < 0.04)


async def read_all(port: TierPort, state: NamespaceState, record: FileRecord) -> bytes:
    """A file's bytes, part by part, as the namespace says where they lie."""
    found = b""
    while len(found) < record.size:
        place = tier_place(state.tier, record.id, len(found))
        if place is None:
            raise Violation(f"file {record.id} is nowhere from byte {len(found)} on")
        found += b"".join(
            await port.read(
                place, file=record.id, size=record.size, start=len(found), stop=record.size
            )
        )
    return found


def transferred(donor: NamespaceMachine) -> NamespaceMachine:
    """A voter that got its state from another: it has no journal of what was before."""
    fresh = NamespaceMachine()
    for chunk in donor.snapshot():
        fresh.restore(chunk)
    return fresh


def files_of(state: NamespaceState) -> tuple[dict[str, int], set[int]]:
    """Every path with its file, and the files that some path is to keep."""
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
    return seen, kept


def moment_of(
    state: NamespaceState, known: dict[int, bytes], shown: dict[str, int], kept: set[int]
) -> Moment:
    every: Tree = {}
    durable: Tree = {}
    for path, id_ in shown.items():
        inline = state.files[id_].record.inline
        every[path] = known.get(id_, inline or b"")
        if id_ in kept:
            durable[path] = every[path]
    return every, durable


# -- a schedule -------------------------------------------------------------------------


async def restore(rng: random.Random, store: FaultyStore, before: Cluster, number: int) -> Cluster:
    """The next epoch's cluster, checked against what the one before has been."""
    after = type(before)(rng, store, f"cluster-{number}")
    won = await take_over(rng, store, after)
    await load(after, before, won)
    await check(store, before, after, won.op)
    return after


async def take_over(rng: random.Random, store: FaultyStore, after: Cluster) -> Manifest:
    tries = 0
    while True:
        chain = Chain(Metered(store), cluster=after.id, name=after.id, epoch=0)  # type: ignore[arg-type]
        try:
            return await chain.take_over(
                resuming(chain), round_id=lambda: f"{rng.getrandbits(64):016x}"
            )
        except StoreDown:
            tries += 1
            if tries > TRIES_MAX:
                store.faults = Faults()  # of so many requests one nearly always fails
            await asyncio.sleep(1)


async def load(after: Cluster, before: Cluster, won: Manifest) -> None:
    after.store.faults = Faults()  # whoever cannot read begins anew, which finds nothing more
    for machine in after.machines:
        await restoring.restore(
            machine.state, after.port(), uri=URI, number=won.number, epoch=won.epoch,
            options=before.state.tier.options, rewound=False,
        )  # fmt: skip


async def check(store: FaultyStore, before: Cluster, after: Cluster, change: int) -> None:
    if before.violations:
        raise Violation(before.violations[0])
    if change < before.announced:
        raise Violation(f"restored {change}, announced {before.announced}")
    if change < before.acknowledged:
        raise Violation(f"restored {change}, acknowledged {before.acknowledged}")
    if change < before.planned.owed:
        owed = before.planned
        raise Violation(f"restored {change}, planned {owed.owed}: {owed.owed_by}")
    if change not in before.moments:
        raise Violation(f"restored {change}, which is no position that there was")
    port = after.port()
    for id_ in [id_ for id_, file in after.state.files.items() if file.record.size]:
        record = after.state.files[id_].record
        data = await read_all(port, after.state, record)
        if file_checksum(data) != record.checksum:
            raise Violation(f"file {id_} is not what it was")
        after.bytes[id_] = bytes(data)
    ids, kept = files_of(after.state)
    shown = moment_of(after.state, after.bytes, ids, kept)
    every, durable = before.moments[change]
    # What was in the tier before its path asked for memory may still be there.
    wrong = [path for path, data in shown[0].items() if every.get(path) != data]
    lost = {path for path, id_ in before.shown[change].items() if id_ in before.gone}
    missing = [path for path in durable if path not in shown[0] and path not in lost]
    if wrong or missing:
        raise Violation(f"change {change}: wrong {wrong}, missing {missing}")
    after.compare(before, change)
    after.time_ms = before.time_ms
    after.planned.begin(after.state)
    after.moments[change] = after.moments[after.state.tier.change] = shown
    after.shown[change] = after.shown[after.state.tier.change] = ids
    after.lost_before = len(before.gone & {*before.shown[change].values()})


async def check_evicted(cluster: Cluster) -> int:
    """What is in the tier alone must be there, as long as nobody else goes on with it."""
    cluster.store.faults = Faults()
    port, state = cluster.port(), cluster.state
    ids = [*state.tier.evicted, *state.tier.cold]
    for id_ in ids:
        record = state.files[id_].record
        data = await read_all(port, state, record)
        if file_checksum(data) != record.checksum:
            raise Violation(f"file {id_} is not what it was")
    return len(ids)


async def schedule(
    seed: int, *, epochs: int = 3, cluster_type: type[Cluster] | None = None
) -> dict[str, int]:
    rng = random.Random(seed)
    store = FaultyStore(rng, files=rng.random() < 0.5)
    cluster = (cluster_type or Cluster)(rng, store, "cluster-0")
    cluster.first = TierSettings(uri=URI)
    counts = {"restored": 0, "superseded": 0, "only_there": 0, "lost": 0}
    loop = asyncio.get_running_loop()
    for number in range(1, epochs + 1):
        cluster.begin_log()
        cluster.tasks += [loop.create_task(cluster.clients()), loop.create_task(cluster.terms())]
        if rng.random() < 0.5:
            cluster.tasks.append(loop.create_task(cluster.losses()))
        if rng.random() < 0.5:
            cluster.tasks.append(loop.create_task(collecting(rng, store)))
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
            counts["only_there"] += await check_evicted(cluster)
            if not any(name.startswith("chain/") for name in store.objects):
                return nothing_there(cluster, counts, epochs)
        if lives_on:
            following = await overlap(rng, store, cluster, number)
            counts["superseded"] += bool(cluster.ended)
        else:
            following = await restore(rng, store, cluster, number)
        counts["restored"] += 1
        counts["lost"] += following.lost_before
        cluster = following
    await cluster.die()
    return counts


def nothing_there(cluster: Cluster, counts: dict[str, int], epochs: int) -> dict[str, int]:
    """The store's machine died before the first manifest was safe: nobody was told of it."""
    if cluster.announced or cluster.acknowledged:
        raise Violation(f"all is gone, {cluster.announced} was announced")
    return counts | {"restored": epochs}


async def collecting(rng: random.Random, store: FaultyStore) -> None:
    """Somebody who has no part in the cluster tidies up, at any time."""
    while True:
        await asyncio.sleep(30 * rng.random())
        chain = Chain(Metered(store), cluster="", name="gc", epoch=0)  # type: ignore[arg-type]
        with suppress(StoreDown, DamagedTier):  # what a leader has just cleared away is gone
            newest = await chain.newest()
            if newest is not None:
                await sweep.tidy(chain, newest, (), dry_run=False)


async def overlap(rng: random.Random, store: FaultyStore, before: Cluster, number: int) -> Cluster:
    """A restore while the old cluster lives: it stops, says why, and acknowledges nothing more."""
    after = type(before)(rng, store, f"cluster-{number}")
    won = await take_over(rng, store, after)
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
