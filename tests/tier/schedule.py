"""One schedule: clusters that write, lose their leaders, die, and are restored, on one store.

Everything is drawn from the seed. After every death the tier is restored, and what comes out must
be the state at one position, exactly and to the last byte: at or after what was announced. Every
manifest that one can return to must hold that too. In the end the faults stop, and then the
drain must catch up and the garbage go.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from diskless.errors import DamagedTier, NotFound, StoreDown, Superseded
from diskless.tier import restore
from diskless.tier.chain import Chain
from diskless.tier.collect import plan
from diskless.tier.manifest import Manifest, decode, number_of
from diskless.tier.retention import Rule
from diskless.tier.store import Missing
from diskless.tier.sweep import load_ledger
from diskless.tier.verify import verify
from tests.tier import loop
from tests.tier.cluster import Cluster, Held, Rates, Restored, Violation, load, load_bytes
from tests.tier.faulty import Faults, FaultyStore, Glance
from tests.tier.model import Log
from tests.tier.mutants import MUTANTS, Mutant

GENERATIONS_MAX = 4
HEAL_S = 600.0
_PLAIN = Mutant()


@dataclass
class Outcome:
    seed: int
    violation: str | None = None
    manifests: int = 0
    restores: int = 0
    take_overs: int = 0
    requests: int = 0
    deleted: int = 0
    record: list[tuple[str, str]] = field(default_factory=list)


def run_schedule(seed: int, mutant: str | None = None) -> Outcome:
    outcome = Outcome(seed)
    schedule = Schedule(seed, MUTANTS[mutant] if mutant else _PLAIN, outcome)
    try:
        loop.run(schedule.run())
    except (Violation, DamagedTier) as error:
        outcome.violation = f"{type(error).__name__}: {error}"
    store = schedule.store
    outcome.requests = store.requests
    outcome.record = store.record
    outcome.manifests = sum(
        name.startswith("chain/") for verb, name in store.record if verb == "put"
    )
    outcome.deleted = sum(verb == "delete" for verb, _ in store.record)
    return outcome


class Schedule:
    def __init__(self, seed: int, mutant: Mutant, outcome: Outcome) -> None:
        self.rng = random.Random(seed)
        self.mutant = mutant
        self.outcome = outcome
        rng = self.rng
        worst = rng.choice((0.0, 0.05, 0.2))
        self.faults = Faults(
            refused=rng.random() * worst,
            lost=rng.random() * worst,
            late=rng.random() * worst,
            slow=rng.random() * worst,
            stale_lists=rng.choice((0.0, 0.5)),
        )
        self.store = FaultyStore(rng, self.faults, files=rng.random() < 0.5)
        rules = rng.choice(((), (Rule(10_000, 60_000),), (Rule(1000, 5000), Rule(20_000, 200_000))))
        self.rates = Rates(
            whole=rng.choice((0.1, 0.3, 0.6)),
            collect=rng.choice((0.1, 0.5, 1.0)),
            give_up=rng.random(),
            rules=rules,
        )
        self.logs: dict[tuple[int, str], Log] = {}
        self.clusters: list[Cluster] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        try:
            await self.generations()
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def generations(self) -> None:
        rng = self.rng
        cluster = self.found(1, Log(), Held())
        for _ in range(rng.randint(1, GENERATIONS_MAX)):
            living = await self.live(cluster)
            if living:
                await asyncio.sleep(rng.random() * 2)  # The old cluster goes on beside the restore.
            else:
                await self.die()
            restored = await self.begin_again()
            await self.check_points(restored)
            cluster = restored
        await self.heal(cluster)
        await self.die()
        self.check_announced()

    # --- life ---

    def found(self, epoch: int, log: Log, held: Held) -> Cluster:
        id_ = f"c{self.rng.getrandbits(32):08x}"
        cluster = Cluster(
            store=self.store,
            rng=self.rng,
            rates=self.rates,
            id=id_,
            epoch=epoch,
            log=log,
            held=held,
            chain_type=self.mutant.chain,
            round_type=self.mutant.round,
            leader_type=self.mutant.leader,
        )
        self.logs[epoch, id_] = log
        self.clusters.append(cluster)
        return cluster

    async def live(self, cluster: Cluster) -> bool:
        """Some seconds of a cluster's life; whether it still lives."""
        rng = self.rng
        self.start(cluster.clients())
        leading = self.start(cluster.lead(cluster.term))
        for _ in range(rng.randint(0, 6)):
            await asyncio.sleep(rng.random() * rng.choice((0.3, 3, 20)))
            kind = rng.random()
            if kind < 0.5:
                if rng.random() < 0.5:
                    leading.cancel()  # Killed; else it goes on, and does not know.
                leading = self.start(cluster.lead(cluster.depose()))
            elif kind < 0.7:
                self.store.away = not self.store.away
        await asyncio.sleep(rng.random() * rng.choice((0.1, 1, 5)))
        self.store.away = False
        return rng.random() < 0.3

    async def die(self) -> None:
        """Everything at once, in the middle of whatever it was doing."""
        for task in self.tasks:
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        for result in results:
            if isinstance(result, Exception):
                raise result
        if self.store.files:
            self.store.crash()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        return task

    def check_tasks(self) -> None:
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    # --- restoring ---

    async def begin_again(self) -> Cluster:
        """Takes over and loads; sometimes two at once try, and one of them must lose."""
        rng = self.rng
        newest = await self.reader().newest()
        if newest is None:
            await self.die()
            self.expect_nothing()
            await asyncio.sleep(200)  # A first manifest may still be on its way: it would win.
            if await self.reader().newest() is None:
                return self.found(1, Log(), Held())
            return await self.begin_again()
        at = restore.NEWEST
        if rng.random() < 0.2:
            at = restore.At(
                op=rng.choice((await restore.points_of(self.reader(), newest))[-20:]).op
            )
        tries = [self.take_over(at) for _ in range(rng.choice((1, 1, 2)))]
        results = await asyncio.gather(*tries, return_exceptions=True)
        for result in results:
            if isinstance(result, Missing):
                raise Violation(f"an answer that nobody expected: {result!r}") from result
            if isinstance(result, BaseException) and not isinstance(result, Superseded | NotFound):
                raise result
        if all(isinstance(result, NotFound) for result in results):
            await asyncio.sleep(1)
            return await self.begin_again()  # What was chosen is no longer kept.
        won = [result for result in results if isinstance(result, Cluster)]
        if not won:
            raise Violation("nobody could take over")
        # Two may follow each other: then the first is over, and learns it when it writes.
        last = max(won, key=lambda cluster: cluster.epoch)
        if len({cluster.epoch for cluster in won}) < len(won):
            raise Violation(f"two clusters won epoch {last.epoch}")
        self.outcome.restores += 1
        return last

    async def take_over(self, at: restore.At) -> Cluster:
        chain = self.mutant.chain(
            self.store, cluster=f"c{self.rng.getrandbits(32):08x}", name="sim", epoch=0
        )
        await asyncio.sleep(self.rng.random())
        manifest = await self.patient(
            lambda: chain.take_over(
                restore.resuming(chain, at), round_id=lambda: f"{self.rng.getrandbits(64):016x}"
            )
        )
        self.outcome.take_overs += 1
        cluster = await self.load(chain, manifest)
        self.logs[chain.epoch, chain.cluster] = cluster.log
        cluster.id, cluster.epoch = chain.cluster, chain.epoch
        return cluster

    async def load(self, chain: Chain, manifest: Manifest) -> Cluster:
        found = await self.check_state(chain, manifest)
        log = Log(
            start_op=manifest.op,
            states=[dict(found.state)],
            bytes=dict(found.bytes),
            last_file=manifest.last_file,
            last_files=[manifest.last_file],
        )
        cluster = self.found(manifest.epoch, log, Held(manifest, found.places, found.segments))
        cluster.announced_op, cluster.time_ms = manifest.op, manifest.time_ms
        return cluster

    async def check_state(self, chain: Chain, manifest: Manifest) -> Restored:
        """What the tier holds at a manifest is what was there, to the last byte."""
        truth, op = await self.truth(manifest)
        found = await self.patient(load, chain, manifest)
        if found.state != truth.state(op):
            raise Violation(f"manifest {manifest.number} is not the state at {op}")
        sizes = {id_: len(truth.bytes[id_]) for id_ in found.state.values()}
        await self.patient(load_bytes, chain, found, sizes)
        for id_, data in found.bytes.items():
            if data != truth.bytes[id_]:
                raise Violation(f"manifest {manifest.number}: file {id_} has wrong bytes")
        return found

    async def truth(self, manifest: Manifest) -> tuple[Log, int]:
        """Whose log a manifest is a prefix of: through take-overs, that of who wrote it."""
        while manifest.takes_over:
            manifest = await self.reader().read(manifest.previous)
        return self.logs[manifest.epoch, manifest.cluster], manifest.op

    async def check_points(self, cluster: Cluster) -> None:
        """All that the tier says one can return to can be returned to."""
        newest = cluster.held.horizon
        if newest is None:
            return
        chain = self.reader()
        for point in await restore.points_of(chain, newest):
            await self.check_state(chain, await chain.read(point.number))
        self.check_announced()

    def check_announced(self) -> None:
        """Nothing was announced that the next epoch does not begin with."""
        self.check_tasks()
        before = {}
        for name, data in sorted(self.store.objects.items()):
            number = number_of(name)
            if number is not None:
                before[number] = decode(data, number)
        epochs = {m.epoch: m for m in before.values() if m.takes_over}
        for cluster in self.clusters:
            end = epochs.get(cluster.epoch + 1)
            if end is None or cluster.held.horizon is None:
                continue
            last = before.get(end.number - 1)
            if last is None:
                raise Violation(f"manifest {end.number - 1} before a take-over is gone")
            if last.cluster == cluster.id and cluster.announced_op > last.op:
                raise Violation(
                    f"epoch {cluster.epoch} announced {cluster.announced_op}, "
                    f"epoch {end.epoch} began after {last.op}"
                )

    def expect_nothing(self) -> None:
        for cluster in self.clusters:
            if cluster.announced_op:
                raise Violation(f"{cluster.announced_op} was announced, and nothing is there")

    # --- the end ---

    async def heal(self, cluster: Cluster) -> None:
        """Without faults the drain reaches the end of the log, and only what is named stays."""
        self.store.faults = Faults()
        self.store.away = False
        await asyncio.sleep(200)  # What is under way arrives.
        self.start(cluster.lead(cluster.depose()))
        self.rates.whole = self.rates.collect = self.rates.listing = 1.0
        garbage: set[str] = set()
        for turn in range(6):
            cluster.log.act(self.rng)
            await self.caught_up(cluster)
            if turn == 2:
                garbage = await self.garbage()
        await asyncio.sleep(10)
        stays = garbage & self.store.objects.keys()
        if stays:
            raise Violation(f"garbage stays: {sorted(stays)}")
        report = await verify(self.reader(), full=True)
        if not report.sound:
            raise Violation(f"verify: {report.problems}")

    async def caught_up(self, cluster: Cluster) -> None:
        deadline = asyncio.get_running_loop().time() + HEAL_S
        while cluster.announced_op < cluster.log.op:
            self.check_tasks()
            if cluster.ended:
                raise Violation(f"the last cluster was ended: {cluster.ended}")
            if asyncio.get_running_loop().time() > deadline:
                raise Violation("the drain does not reach the end of the log")
            await asyncio.sleep(1)

    async def garbage(self) -> set[str]:
        chain = self.reader()
        newest = await chain.newest()
        assert newest is not None
        ledger = await load_ledger(chain, newest)
        return set(plan(ledger, self.rates.rules, listed=self.store.objects).doomed)

    # --- hands ---

    def reader(self) -> Chain:
        return Chain(Glance(self.store), cluster="", name="", epoch=1 << 40)

    async def patient(self, work, *args):  # type: ignore[no-untyped-def]
        """Tries again while the store is bad. It gets better: what takes hundreds of requests, of
        which one in twenty fails, would never be done."""
        for tried in range(1, 501):
            self.check_tasks()
            try:
                return await work(*args)
            except StoreDown as error:
                last = error
                if tried % 50 == 0:
                    self.faults.refused /= 2
                    self.faults.lost /= 2
                await asyncio.sleep(self.rng.random() * 2)
        raise Violation(f"500 times in vain, at last: {last}")
