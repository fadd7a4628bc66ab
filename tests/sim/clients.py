"""Clients: sessions, puts, renames, deletes, directories, snapshots and stats, with retries.

Each has one operation under way. It asks a voter, follows hints to the leader, and
repeats with the same sequence number through another voter when nothing comes back.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from diskless.errors import DisklessError
from diskless.namespace import commands as c
from diskless.namespace.replication import Rejected
from diskless.namespace.views import PathStatus
from diskless.policy import DURABILITY, VALUES
from tests.sim.model import Position
from tests.sim.world import Machine, World

OPERATIONS_AFTER = 3
PATHS = ("/a", "/b", "/d", "/d/x", "/d/y", "/e/z")
DIRECTORIES = ("/d", "/d", "/e", "/")
NAMES = ("s", "t", "before-s")
PAST = (
    "/d/.snapshot/s",
    "/d/.snapshot/s/x",
    "/d/.snapshot/t/y",
    "/d/.snapshot/before-s/x",
    "/e/.snapshot/s/z",
    "/.snapshot/s/a",
    "/.snapshot/s/d/x",
    "/.snapshot/before-s/d",
)
PAST_SHARE = 0.3
TOKENS = 20
"""Names, of which each is issued again and again, and sometimes revoked."""
SWEEP_ENTRIES_MAX = 4
TIER_SHARE = 0.08
FILES_MAX = 40
"""About as many as a schedule has."""


def some_path(random: Random) -> str:
    return random.choice(PAST if random.random() < PAST_SHARE else PATHS)


def tier_command(random: Random) -> c.Command:
    """What only a leader says, here said by anybody: late and twice, too."""
    luck, epoch, number = random.random(), random.randint(1, 2), random.randint(1, 20)
    if luck < 0.2:
        return c.SetPolicy(random.choice(PATHS), DURABILITY, random.choice(VALUES[DURABILITY]))
    if luck < 0.3:
        return c.RemovePolicy(random.choice(PATHS), "")
    if luck < 0.5:
        return c.AttachTier("file:///t", epoch, 0)
    if luck < 0.53:
        return c.DetachTier()
    if luck < 0.7:
        segments = tuple((one, f"segment-{one}", 100) for one in (number, number + 1))
        ids = random.sample(range(1, FILES_MAX), 5)
        rows = tuple((id_, random.choice(segments)[0], 0, id_, 0) for id_ in ids)
        return c.Keep(number, segments, rows)
    if luck < 0.8:
        return c.Horizon(epoch, number, random.randint(1, FILES_MAX), 1, 1, 1)
    return c.Mark() if luck < 0.92 else c.Unmark()


def past_command(random: Random, session: int, sequence: int) -> c.Command:
    """A snapshot is made as often as one goes, so that there are always a few."""
    luck, path, name = random.random(), random.choice(DIRECTORIES), random.choice(NAMES)
    if luck < 0.3:
        return c.CreateSnapshot(session, sequence, (path,), name)
    if luck < 0.4:
        return c.CreateSnapshot(session, sequence, ("/d", "/e"), name, cut=True)
    if luck < 0.6:
        return c.Clone(session, sequence, some_path(random), random.choice(PATHS))
    if luck < 0.8:
        return c.Rollback(session, sequence, path, name, cut=luck < 0.64)
    if luck < 0.9:
        return c.RenameSnapshot(session, sequence, path, name, random.choice(NAMES))
    return c.DeleteSnapshots(session, sequence, path, (name,))


def stat(path: str) -> Callable[[Machine], PathStatus | None]:
    def read(machine: Machine) -> PathStatus | None:
        try:
            return machine.state.stat(path)
        except DisklessError:
            return None

    return read


class Prober:
    """Reads again and again from every voter that believes it leads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(world.random.getrandbits(32))
        self.probe()

    def probe(self) -> None:
        world = self.world
        if world.healed:
            return
        for node, replica in world.live():
            if replica.leads:
                world.checker.elapsed(replica.elapsed_ms(node.clock(world.now)))
                path, began = some_path(self.random), world.checker.began()
                world.query(node, stat(path), partial(self._answered, path, began))
        world.at(self.random.uniform(5, 25), self.probe)

    def _answered(self, path: str, began: Position, found: Any, op: int) -> None:
        if not isinstance(found, Rejected):
            self.world.checker.read(path, found, op, began)


class Client:
    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.world = world
        self.left = OPERATIONS_AFTER  # counted from when the world is whole again
        self.session: int | None = None
        self.sequence = 0
        self.guess = number % world.plan.voters
        self.attempt = 0
        self.began: Position = (0, 0)
        self.command: c.Command | None = None
        self.data = b""
        self.path = ""
        self.random = Random(world.random.getrandbits(32))
        world.at(self.random.uniform(0, 30), self.next)

    @property
    def done(self) -> bool:
        return self.left <= 0

    def go_on(self) -> None:
        """Does a few more, in a world that is whole."""
        self.left = OPERATIONS_AFTER
        self.next()

    def next(self) -> None:
        """Chooses an operation and begins it."""
        if self.done:
            return
        self.began = self.world.checker.began()
        luck = self.random.random()
        if luck < 0.2:
            self.guess = self.random.randrange(self.world.plan.voters)
        elif luck < 0.6 and (leader := self.world.leader()) is not None:
            self.guess = leader.slot
        if self.session is None:
            self.command = c.OpenSession(f"q{self.number}")
        elif self.random.random() < 0.3:
            self.command = None
            self.path = some_path(self.random)
        else:
            self.sequence += 1
            self.command = self._mutation(self.session, self.sequence)
        if self.command is not None:
            self.data = c.encode(self.command)
        self._try()

    def _mutation(self, session: int, sequence: int) -> c.Command:
        random = self.random
        if random.random() < PAST_SHARE:
            return past_command(random, session, sequence)
        luck, path = random.random(), random.choice(PATHS)
        if luck < 0.02:
            return c.Sweep(random.randint(1, SWEEP_ENTRIES_MAX))
        if luck < 0.02 + TIER_SHARE:
            return tier_command(random)
        if luck < 0.6:
            checksum = self.number * 10_000 + sequence
            file = c.NewFile(path, 1, checksum, b"x")
            return c.Commit((), (c.Put(session, sequence, luck < 0.3, (file,)),))
        if luck < 0.75:
            return c.Rename(session, sequence, path, random.choice(PATHS), luck < 0.7)
        if luck < 0.9:
            return c.Delete(session, sequence, path, luck < 0.85, snapshots=luck < 0.8)
        if luck < 0.97:
            return c.Mkdirs(session, sequence, path)
        name = f"token-{int(1e6 * luck) % TOKENS}"
        return c.RevokeToken(name) if luck < 0.98 else c.IssueToken(name, (path,), True, 0)

    # -- tries -------------------------------------------------------------------

    def _try(self) -> None:
        world, random = self.world, self.random
        self.attempt += 1
        attempt, node = self.attempt, world.door(self.guess)
        lost = not world.healed and random.random() < world.plan.drop
        if not lost:
            if self.command is None:
                world.at(random.uniform(0.1, 2), self._ask, node, attempt)
            else:
                world.at(random.uniform(0.1, 2), self._submit, node, self.data, attempt)
                if not world.healed and random.random() < world.plan.twice:
                    late = random.uniform(1, 2000)
                    world.at(late, world.submit, node, self.data, lambda effect: None)
        world.at(world.plan.patience_ms * random.uniform(0.7, 1.5), self._timeout, attempt)

    def _timeout(self, attempt: int) -> None:
        if attempt == self.attempt:
            self.guess = self.random.randrange(self.world.plan.voters)
            self._try()

    def _submit(self, node: Any, data: bytes, attempt: int) -> None:
        def answer(effect: Any) -> None:
            self.world.at(self.random.uniform(0.1, 2), self._answered, attempt, effect, -1)

        self.world.submit(node, data, answer)

    def _ask(self, node: Any, attempt: int) -> None:
        def answer(found: Any, op: int) -> None:
            self.world.at(self.random.uniform(0.1, 2), self._answered, attempt, found, op)

        self.world.query(node, stat(self.path), answer)

    def _answered(self, attempt: int, effect: Any, op: int) -> None:
        if attempt != self.attempt:
            return
        if isinstance(effect, Rejected):
            self.attempt += 1
            known = effect.leader
            self.guess = known if known is not None else (self.guess + 1) % self.world.plan.voters
            pause = 1 if known is not None else 20
            self.world.at(self.random.uniform(0, pause), self._again, self.attempt)
            return
        self.attempt += 1
        if self.command is None:
            self.world.checker.read(self.path, effect, op, self.began)
        else:
            self.world.checker.wrote(self.command, effect.results, self.began)
            if isinstance(self.command, c.OpenSession):
                self.session = effect.results[0].number
        self.left -= self.world.healed
        self.world.at(self.random.expovariate(1 / self.world.plan.think_ms), self.next)

    def _again(self, attempt: int) -> None:
        if attempt == self.attempt:
            self._try()
