"""Clients: sessions, puts, renames, deletes, directories, snapshots and stats, with retries.

Each has one operation under way. It asks a voter, follows hints to the leader, and
repeats with the same sequence number through another voter when nothing comes back.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from diskless.agent.leading.backlog import Backlog
from diskless.errors import DisklessError
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.replication import Rejected, Reply
from diskless.namespace.views import PathStatus
from diskless.policy import BARRIER, DURABILITIES, DURABILITY, QUOTA
from tests.sim.model import Position
from tests.sim.world import Machine, Node, World

OPERATIONS_AFTER = 3
PATHS = ("/a", "/b", "/d", "/d/x", "/d/y", "/e/z")
CHECKPOINTS = ("/q", "/s")
"""One with state, and one without."""
OF_A_QUERY = ("/q/metadata", "/q/offsets/0", "/q/offsets/1", "/q/commits/0", "/q/state/0",
              "/s/metadata", "/s/offsets/0", "/s/offsets/1", "/s/commits/0")  # fmt: skip
QUERY_SHARE = {False: 0.1, True: 0.7}
"""Of puts, by whether a schedule is about them."""
APPLICATIONS = ("", "app-1", "app-2")
DIRECTORIES = ("/d", "/d", "/e", "/", "/q")
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
    "/q/.snapshot/s",
    "/q/.snapshot/t/offsets/0",
)
PAST_SHARE = 0.3
RETURN_SHARE = 0.03
QUOTA_SHARE = 0.3
TOKENS = 20
"""Names, of which each is issued again and again, and sometimes revoked."""
SWEEP_ENTRIES_MAX = 4
TIER_SHARE = 0.08
FILES_MAX = 40
"""About as many as a schedule has."""
DRAIN_EVERY_MS = 60
KEPT_IN_ROUND = 4
NOT_YET = Rejected(0, None, None)  # type: ignore[arg-type]
"""Of an answer that is kept back: whoever wants it asks again."""
Unnumbered = Callable[..., c.Command]


class Dice(Random):
    """Chance, and how much of it falls on checkpoints."""

    query_share = QUERY_SHARE[False]

    @classmethod
    def of(cls, world: World) -> "Dice":
        dice = cls(world.random.getrandbits(32))
        dice.query_share = QUERY_SHARE[world.plan.queries]
        return dice


def some_path(random: Dice) -> str:
    return random.choice(PAST) if random.random() < PAST_SHARE else present_path(random)


def present_path(random: Dice) -> str:
    return random.choice(OF_A_QUERY if random.random() < random.query_share else PATHS)


def tier_command(random: Dice) -> c.Command:
    """What only a leader says, here said by anybody: late and twice, too."""
    luck, epoch, number = random.random(), random.randint(1, 2), random.randint(1, 20)
    asking = random.choice((*PATHS, *CHECKPOINTS, *CHECKPOINTS, *CHECKPOINTS))
    if luck < 0.2:
        return c.SetPolicy(asking, DURABILITY, random.choice((*DURABILITIES, BARRIER)))
    if luck < 0.25:
        return c.SetPolicy(asking, QUOTA, str(random.randint(1, 6)))
    if luck < 0.35:
        return c.RemovePolicy(asking, "")
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
        return c.Horizon(epoch, number, random.randint(1, FILES_MAX), 1, 1, 0)
    if luck < 0.86:
        return c.Evict(tuple((id_, 0) for id_ in random.sample(range(1, FILES_MAX), 5)))
    return c.Mark() if luck < 0.92 else c.Unmark()


def past_command(random: Dice, session: int, sequence: int) -> c.Command:
    """A snapshot is made as often as one goes, so that there are always a few."""
    luck, path, name = random.random(), random.choice(DIRECTORIES), random.choice(NAMES)
    if luck < 0.3:
        return c.CreateSnapshot(session, sequence, (path,), name)
    if luck < 0.4:
        return c.CreateSnapshot(session, sequence, ("/d", "/e"), name, cut=True)
    if luck < 0.6:
        return c.Clone(session, sequence, some_path(random), present_path(random))
    if luck < 0.8:
        return c.Rollback(session, sequence, path, name, cut=luck < 0.64, guarded=luck > 0.72)
    if luck < 0.9:
        return c.RenameSnapshot(session, sequence, path, name, random.choice(NAMES))
    return c.DeleteSnapshots(session, sequence, path, (name,))


def return_of_a_query(random: Dice) -> list[Unnumbered]:
    """What a rollback to an earlier batch consists of; others may come between its steps."""
    path, name, force = random.choice((*CHECKPOINTS, "/d")), random.choice(NAMES), random.random()
    draft = f"/draft-{random.randrange(2)}"
    return [
        partial(c.CreateSnapshot, paths=(path,), name=name),
        partial(c.Clone, source=f"{path}/.snapshot/{name}", target=draft),
        partial(c.Prune, path=draft, names=("offsets/1", "commits/0", "x")),
        partial(c.Replace, swaps=(c.Swap(path, draft, name),), force=force < 0.5),
    ]


def begin_queries(random: Dice) -> list[Unnumbered]:
    """A tier, and checkpoints of which most is asked."""
    first = [c.AttachTier("file:///t", 1, 0)]
    first += [c.SetPolicy(path, DURABILITY, BARRIER) for path in CHECKPOINTS]
    if random.random() < QUOTA_SHARE:
        first.append(c.SetPolicy(random.choice(("/", "/d", "/q")), QUOTA, random.choice("2468")))
    files = [c.NewFile(f"{path}/metadata", 1, n, b"x") for n, path in enumerate(CHECKPOINTS)]
    return [
        *(lambda *_, one=one: one for one in first),
        *(lambda *who, one=one: c.Commit((), (c.Put(*who, True, (one,)),)) for one in files),
    ]


def is_held(machine: Machine, command: c.Command) -> bool:
    """Whether a leader keeps the answer back until the tier has come further."""
    if not machine.state.tier.attached:
        return False
    waits = Backlog(world=machine, now_s=lambda: 0.0).after(command)
    if waits is None:
        return False
    waits.close()  # type: ignore[attr-defined]
    return True


def stat(path: str) -> Callable[[Machine], PathStatus | Rejected | None]:
    def read(machine: Machine) -> PathStatus | Rejected | None:
        attached = machine.state.tier.attached
        if attached and Backlog(world=machine, now_s=lambda: 0.0).before_answer(q.Open(path)):
            return NOT_YET
        try:
            return machine.state.stat(path)
        except DisklessError:
            return None

    return read


class Prober:
    """Reads again and again from every voter that believes it leads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Dice.of(world)
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


class Drainer:
    """Brings files into the tier by way of whoever leads: what there is when a round begins is
    within the horizon when it ends. It evicts some, too."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Dice.of(world)
        self.drain()

    def drain(self) -> None:
        pause_ms = self.random.uniform(0.5, 1.5) * DRAIN_EVERY_MS
        node, machine = self._leader()
        if node is not None and machine is not None:
            state, tier = machine.state, machine.state.tier
            if tier.attached and tier.horizon_change < tier.change:
                ids = self.random.sample(sorted(state.files), min(len(state.files), KEPT_IN_ROUND))
                rows = tuple((id_, 1, id_, 1, 0) for id_ in ids)
                self._say(node, c.Keep(1, ((1, "segment-1", 100),), rows))
                self._say(node, c.Evict(tuple((id_, 0) for id_ in ids[:1])))
                reached = (tier.change, node.replica.applied, 0, state.last_file)
                self.world.at(pause_ms, self._end_round, reached)
        self.world.at(2 * pause_ms, self.drain)

    def _end_round(self, reached: tuple[int, int, int, int]) -> None:
        node, machine = self._leader()
        if node is not None and machine is not None:
            tier = machine.state.tier
            self._say(node, c.Horizon(tier.epoch, tier.number + 1, *reached))

    def _leader(self) -> tuple[Node | None, Machine | None]:
        node = self.world.leader()
        machine = node.replica.machine if node is not None and node.replica is not None else None
        assert machine is None or isinstance(machine, Machine)
        return node, machine

    def _say(self, node: Node, command: c.Command) -> None:
        self.world.submit(node, c.encode(command), lambda effect: None)


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
        self.random = Dice.of(world)
        self.planned = begin_queries(self.random) if world.plan.queries and not number else []
        self.application = self.random.choice(APPLICATIONS)
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
            self.command = c.OpenSession(f"q{self.number}", self.application)
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
        if not self.planned and random.random() < RETURN_SHARE:
            self.planned = return_of_a_query(random)
        if self.planned:
            return self.planned.pop(0)(session, sequence)
        if random.random() < PAST_SHARE:
            return past_command(random, session, sequence)
        luck, path = random.random(), present_path(random)
        if luck < 0.02:
            return c.Sweep(random.randint(1, SWEEP_ENTRIES_MAX))
        if luck < 0.02 + TIER_SHARE:
            return tier_command(random)
        if luck < 0.6:
            checksum = self.number * 10_000 + sequence
            file = c.NewFile(path, 1, checksum, b"x")
            return c.Commit((), (c.Put(session, sequence, luck < 0.3, (file,)),))
        if luck < 0.75:
            return c.Rename(session, sequence, path, present_path(random), luck < 0.7)
        if luck < 0.9:
            return c.Delete(session, sequence, path, luck < 0.85, snapshots=luck < 0.8)
        if luck < 0.95:
            return c.Mkdirs(session, sequence, path)
        if luck < 0.98:
            roots = random.sample(CHECKPOINTS, 2)
            return c.KeepLeases(session, sequence, tuple(roots[:1]), tuple(roots[1:]))
        name = f"token-{int(1e6 * luck) % TOKENS}"
        return c.RevokeToken(name) if luck < 0.985 else c.IssueToken(name, (path,), True, 0)

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
            if isinstance(effect, Reply) and attempt == self.attempt and self._is_held(node):
                effect = NOT_YET
            self.world.at(self.random.uniform(0.1, 2), self._answered, attempt, effect, -1)

        self.world.submit(node, data, answer)

    def _is_held(self, node: Node) -> bool:
        assert node.replica is not None
        assert self.command is not None
        machine = node.replica.machine
        assert isinstance(machine, Machine)
        return is_held(machine, self.command)

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
