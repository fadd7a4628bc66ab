"""The namespace outlives its leaders: real Ray, real kills, clients that keep the books.

Each `Owner` is a client thread that alone uses one directory, so it knows exactly what
must be there: everything acknowledged, nothing else, and one of two states where an
operation ended without a clear answer. All files are small enough to stay inline: they
live in the replicated state, and the loss of shards (there is no repairer yet) does not
blur the picture. DISKLESS_SEED repeats the choices of a run.

The agents log which voters had a command when it was acknowledged. In all that these tests do
to them, that is always a majority.
"""

import itertools
import os
import random
import re
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest

from diskless.cli import exits
from diskless.client import Client, connect, descriptor
from diskless.config import KIB, Tuning
from diskless.errors import AlreadyExists, DeadlineExceeded, NotFound, Unavailable
from diskless.launch import rundir, signals
from diskless.launch.record import record_of
from diskless.model import parse_slot, slot_name
from tests.support import Program, content, eventually, ray_program, session_of

AGENTS, K = 6, 2
VOTERS = 2 * K + 1
SETTINGS = ("--agents", str(AGENTS), "-m", "4", "-k", str(K), "--memory", "128MiB")
FAILURE_TIMEOUT_S = Tuning().failure_timeout_s

OWNERS, CLIENTS, NAMES = 4, 2, 8
PACE_S = 0.005
"""Between the operations of an owner: two cores also have to start Ray's new processes."""
INLINE_BYTES_MAX = 4 * KIB
"""Larger files move into stripes after a while."""
RECOVERY_TIMEOUT_S = 60.0
GAP_S_MAX = 5 * FAILURE_TIMEOUT_S
"""Without an acknowledged put after a kill. The benchmark has the real limit, 2 ×: here
Ray's new processes start on the same few cores."""
SHORT_TIMEOUT_S = 4.0

UNCLEAR = (DeadlineExceeded, Unavailable)
"""After these nobody knows whether the operation happened."""

Files = dict[str, bytes | None]

pytestmark = pytest.mark.timeout(170)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISKLESS_LOG", "debug")
        with ray_program(*SETTINGS) as (program, _):
            yield program
            check_majorities(acknowledged(program))


@pytest.fixture
def client(program: Program) -> Iterator[Client]:
    with connect(program.name) as client:
        yield client


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("DISKLESS_SEED") or secrets.randbits(32))
    print(f"DISKLESS_SEED={seed}")
    return random.Random(seed)


# Who had what was acknowledged.


def acknowledged(program: Program) -> dict[int, set[int]]:
    """The voters that had a command when it was acknowledged, by its op: as all agents logged
    it so far, the dead ones too."""
    logs = rundir.run_dir(descriptor.load(program.name).cluster) / "r" / "session_latest" / "logs"
    said = re.compile(r"acknowledged op=(\d+) view=\d+ voters=\(([\d, ]*)\)$", re.MULTILINE)
    found: dict[int, set[int]] = {}
    for log in logs.glob("worker-*.err"):
        for op, voters in said.findall(log.read_text()):
            slots = {int(slot) for slot in voters.split(",") if slot.strip()}
            found[int(op)] = min(slots, found.get(int(op), slots), key=len)
    return found


def check_majorities(voters_of: Mapping[int, set[int]]) -> None:
    too_few = {op: voters for op, voters in voters_of.items() if len(voters) <= K}
    assert not too_few, f"acknowledged without {K + 1} of {VOTERS} voters: {too_few}"
    sizes = Counter(map(len, voters_of.values()))
    print(f"acknowledged {len(voters_of)} rounds; voters that had them: {dict(sizes)}")


def ops_of(client: Client, root: str) -> dict[str, int]:
    """The places in the log of what was put below a directory."""
    puts = [event for event in client.events() if event.text.startswith(f"put {root}/")]
    return {event.text.split()[1]: event.op for event in puts}


# Traffic that keeps its books.


class Owner:
    """One thread's operations in a directory that nobody else uses."""

    def __init__(self, client: Client, directory: str, rng: random.Random) -> None:
        self.directory = directory
        self.files: dict[str, bytes] = {}
        self.unsure: list[tuple[Files, Files]] = []
        """What was at some paths, and what is if the unclear operation took place. It may
        also do so later, so these paths are not used again."""
        self.puts_s: list[float] = []
        self.counts: Counter[str] = Counter()
        self._client = client
        self._rng = rng
        self._numbers = itertools.count()
        self._names = [self._fresh_name() for _ in range(NAMES)]

    def run(self, stop: threading.Event) -> None:
        self._client.mkdirs(self.directory)
        steps = (self.put, self.put, self.rename, self.delete, self.read, self.look)
        while not stop.wait(PACE_S):
            self._rng.choice(steps)()

    def put(self) -> None:
        path, overwrite = self._rng.choice(self._names), self._rng.random() < 0.5
        number = next(self._numbers)
        data = content(self._rng.randrange(INLINE_BYTES_MAX), f"{self.directory}/{number}")
        refused = path in self.files and not overwrite
        acknowledged = self._do(
            f"put {path} overwrite={overwrite}",
            lambda: self._client.write(path, data, overwrite=overwrite).size,
            outcome=AlreadyExists if refused else len(data),
            paths=[path],
            change={} if refused else {path: data},
        )
        if acknowledged and not refused:
            self.puts_s.append(time.monotonic())

    def rename(self) -> None:
        if not self.files:
            return
        source, overwrite = self._rng.choice(sorted(self.files)), self._rng.random() < 0.5
        target = self._rng.choice([name for name in self._names if name != source])
        refused = target in self.files and not overwrite
        self._do(
            f"rename {source} {target} overwrite={overwrite}",
            lambda: self._client.rename(source, target, overwrite=overwrite),
            outcome=AlreadyExists if refused else None,
            paths=[source, target],
            change={} if refused else {source: None, target: self.files[source]},
        )

    def delete(self) -> None:
        path = self._rng.choice(self._names)
        self._do(
            f"delete {path}",
            lambda: self._client.delete(path),
            outcome=path in self.files,
            paths=[path],
            change={path: None},
        )

    def read(self) -> None:
        path = self._rng.choice(self._names)
        self._see(
            f"read {path}",
            lambda: self._client.read(path),
            outcome=self.files.get(path, NotFound),
        )

    def look(self) -> None:
        unsure = {path for before, _ in self.unsure for path in before}
        self._see(
            f"list {self.directory}",
            lambda: {entry.path for entry in self._client.list(self.directory)} - unsure,
            outcome=set(self.files),
        )

    def check(self, client: Client) -> None:
        """Everything acknowledged is there, byte for byte, and nothing else."""
        found: Files = {
            entry.path: client.read(entry.path) for entry in client.list(self.directory)
        }
        for before, after in self.unsure:
            seen = {path: found.pop(path, None) for path in before}
            assert seen in (before, after), f"half done: {sorted(before)}"
        wrong = [p for p in sorted(found | self.files) if found.get(p) != self.files.get(p)]
        assert not wrong, f"lost, wrong or done twice: {wrong}"

    def _see(self, what: str, work: Callable[[], object], *, outcome: object) -> None:
        """A read: whenever it is answered, it shows all that this owner was promised."""
        try:
            seen = work()
        except NotFound:
            seen = NotFound
        except UNCLEAR:
            self.counts["reads without an answer"] += 1
            return
        assert seen == outcome, f"{what}: not what was acknowledged"
        self.counts["reads"] += 1

    def _do(
        self,
        what: str,
        work: Callable[[], object],
        *,
        outcome: object,
        paths: list[str],
        change: Files,
    ) -> bool:
        """A mutation: it must end as it does when carried out once. Whether it was answered."""
        try:
            seen = work()
        except (AlreadyExists, NotFound) as error:
            seen = type(error)
        except UNCLEAR as error:
            print(f"unclear: {what}: {error}")
            self._retire(paths, change)
            return False
        assert seen == outcome, f"{what}: {seen}, not {outcome}"
        for path, data in change.items():
            if data is None:
                self.files.pop(path, None)
            else:
                self.files[path] = data
        self.counts["mutations"] += 1
        return True

    def _retire(self, paths: Iterable[str], change: Files) -> None:
        before: Files = {path: self.files.pop(path, None) for path in paths}
        self.unsure.append((before, before | change))
        self._names = [self._fresh_name() if name in before else name for name in self._names]
        self.counts["mutations without an answer"] += 1

    def _fresh_name(self) -> str:
        return f"{self.directory}/{next(self._numbers)}"


@contextmanager
def traffic(program: Program, directory: str, rng: random.Random) -> Iterator[list[Owner]]:
    """Owners at work until the block ends; some share a client, as threads of a user do."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(program.name)) for _ in range(CLIENTS)]
        owners = [
            Owner(clients[n % CLIENTS], f"{directory}/{n}", random.Random(rng.random()))
            for n in range(OWNERS)
        ]
        stop = threading.Event()
        pool = stack.enter_context(ThreadPoolExecutor(OWNERS))
        running = [pool.submit(owner.run, stop) for owner in owners]
        try:
            eventually(lambda: all(owner.puts_s for owner in owners))
            yield owners
        finally:
            stop.set()
        for one in running:
            one.result()


def check_all(client: Client, owners: Iterable[Owner]) -> None:
    counts: Counter[str] = Counter()
    for owner in owners:
        owner.check(client)
        counts += owner.counts
    print(f"checked: {dict(counts)}")


def longest_gap_s(owners: Iterable[Owner], *, begin_s: float, end_s: float) -> float:
    """The longest time without an acknowledged put."""
    puts = sorted(put for owner in owners for put in owner.puts_s if begin_s < put < end_s)
    return max(after - before for before, after in itertools.pairwise([begin_s, *puts, end_s]))


# Killing and waiting.


def leader_of(status: Mapping[str, Any]) -> int:
    return parse_slot(status.leader)


def kill(status: Mapping[str, Any], slots: Iterable[int]) -> None:
    """SIGKILL, all at once. Ray starts them again."""
    for pid in [status.agents[slot].pid for slot in slots]:
        os.kill(pid, signal.SIGKILL)


def is_well(status: Mapping[str, Any]) -> bool:
    return status.margin == K and all(agent.state == "up" for agent in status.agents)


def await_recovery(
    client: Client, before: Mapping[str, Any], killed: Iterable[int] = ()
) -> dict[str, Any]:
    """The status once nothing is missing and the killed have all begun a later life."""
    last: dict[str, Any] = {}

    def recovered() -> bool:
        nonlocal last
        try:
            last = client.status()
        except UNCLEAR as error:
            last = {"error": str(error)}
            return False
        return is_well(last) and all(
            last.agents[slot].incarnation > before.agents[slot].incarnation for slot in killed
        )

    try:
        eventually(recovered, RECOVERY_TIMEOUT_S)
    except AssertionError:
        print(f"not recovered: {last}")
        raise
    return last


def kill_under_traffic(
    client: Client,
    owners: list[Owner],
    choose: Callable[[dict[str, Any]], list[int]],
    *,
    apart_s: float = 0.0,
) -> None:
    """Kills within the margin, all at once unless `apart_s` says, and the way back to it."""
    before = await_recovery(client, client.status())
    victims = choose(before)
    begin_s = time.monotonic()
    if apart_s:
        kill(before, victims[:1])
        threading.Timer(apart_s, kill, (before, victims[1:])).start()
    else:
        kill(before, victims)
    after = await_recovery(client, before, victims)
    end_s = time.monotonic()
    gap_s = longest_gap_s(owners, begin_s=begin_s, end_s=end_s)
    print(
        f"killed {', '.join(map(slot_name, victims))} (leader {before.leader}, view "
        f"{before.view}) {apart_s:.2f} s apart: {gap_s:.2f} s without a put, margin {K} "
        f"again after {end_s - begin_s:.1f} s; now {after.leader}, view {after.view}"
    )
    assert gap_s < GAP_S_MAX
    if leader_of(before) in victims:
        assert after.view > before.view


# The tests.


@pytest.mark.parametrize(
    "kills", [5, pytest.param(60, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])]
)
def test_leaders_killed_again_and_again_lose_nothing_acknowledged(
    program: Program, client: Client, rng: random.Random, kills: int
) -> None:
    with traffic(program, f"/leaders-{kills}", rng) as owners:
        for _ in range(kills):
            kill_under_traffic(client, owners, lambda status: [leader_of(status)])
    check_all(client, owners)


def in_turn(status: Mapping[str, Any]) -> list[int]:
    """All slots: the leader, those that would lead after it in their order, the others."""
    first = leader_of(status)
    return [(first + n) % VOTERS for n in range(VOTERS)] + list(range(VOTERS, AGENTS))


EVERY_RUN = {(0, n) for n in range(1, AGENTS)} | {(1, 2), (2, 4), (3, 5)}


@pytest.mark.parametrize(
    "turns",
    [
        pair if pair in EVERY_RUN else pytest.param(pair, marks=pytest.mark.chaos)
        for pair in itertools.combinations(range(AGENTS), 2)
    ],
    ids=lambda pair: "leader-and-{1}".format(*pair) if not pair[0] else "{}-and-{}".format(*pair),
)
def test_any_two_agents_killed_at_once_lose_nothing_acknowledged(
    program: Program, client: Client, rng: random.Random, turns: tuple[int, int]
) -> None:
    """The pair is counted from the leader: 1 would lead next, 5 does not vote."""
    with traffic(program, "/pair-{}-{}".format(*turns), rng) as owners:
        kill_under_traffic(client, owners, lambda s: [in_turn(s)[turn] for turn in turns])
    check_all(client, owners)


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(30, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])]
)
def test_successors_killed_while_they_take_over_lose_nothing_acknowledged(
    program: Program, client: Client, rng: random.Random, rounds: int
) -> None:
    with traffic(program, f"/successors-{rounds}", rng) as owners:
        for _ in range(rounds):
            kill_under_traffic(
                client,
                owners,
                lambda status: in_turn(status)[:2],
                apart_s=rng.uniform(0.05, FAILURE_TIMEOUT_S),
            )
    check_all(client, owners)


@contextmanager
def pausing() -> Iterator[Callable[[Mapping[str, Any], int], None]]:
    """Stops processes of agents; they go on when the block ends."""
    stopped: list[int] = []

    def pause(status: Mapping[str, Any], slot: int) -> None:
        stopped.append(status.agents[slot].pid)
        signals.stop(stopped[-1:])

    try:
        yield pause
    finally:
        signals.send(stopped, signal.SIGCONT)


def refusal(work: Callable[[], object]) -> str:
    """The error with which `work` fails, in the client's time and not after it."""
    begin_s = time.monotonic()
    with pytest.raises(UNCLEAR) as refused:
        work()
    took_s = time.monotonic() - begin_s
    assert took_s < SHORT_TIMEOUT_S + 1, f"{took_s:.1f} s: {refused.value}"
    return str(refused.value)


def read_until_refused(client: Client, files: Mapping[str, bytes]) -> str:
    """A lease may outlive the quorum a little: until then answers are right, then none."""
    end_s = time.monotonic() + FAILURE_TIMEOUT_S
    for path in itertools.cycle(files):
        begin_s = time.monotonic()
        try:
            assert client.read(path) == files[path]
        except UNCLEAR as error:
            assert time.monotonic() - begin_s < SHORT_TIMEOUT_S + 1
            return str(error)
        assert begin_s < end_s, "a read was served without a quorum"
    raise AssertionError("no files")


@pytest.mark.parametrize("last", ["the-leader", "a-follower"])
def test_k_paused_voters_are_missed_by_nobody_and_one_more_stops_everything_until_it_is_back(
    program: Program, rng: random.Random, last: str
) -> None:
    root = f"/paused-{last}"
    files = {f"{root}/{n}": content(rng.randrange(INLINE_BYTES_MAX), n) for n in range(8)}
    with connect(program.name, timeout_s=SHORT_TIMEOUT_S) as client:
        for path, data in files.items():
            client.write(path, data)
        before = await_recovery(client, client.status())
        leader, *others = in_turn(before)[:VOTERS]
        followers = rng.sample(others, K - 1)
        with pausing() as pause:
            for slot in (leader, *followers):
                pause(before, slot)
            with_k_paused = {f"{root}/with-k-paused-{n}": b"k" for n in range(4)}
            files |= with_k_paused
            for path, data in with_k_paused.items():
                client.write(path, data)
            assert all(client.read(path) == data for path, data in files.items())
            ops, voters_of = ops_of(client, root), acknowledged(program)
            left = {slot for slot in others if slot not in followers}
            assert all(voters_of[ops[path]] == left for path in with_k_paused)

            eventually(lambda: client.status().margin == 0, SHORT_TIMEOUT_S)
            now = client.status()
            heir = leader_of(now)
            assert heir in left
            one_more = heir if last == "the-leader" else rng.choice(sorted(left - {heir}))
            pause(now, one_more)
            with ThreadPoolExecutor(4) as pool:
                refused = [
                    pool.submit(refusal, lambda: client.write(f"{root}/new", b"new")),
                    pool.submit(refusal, lambda: client.rename(f"{root}/0", f"{root}/moved")),
                    pool.submit(refusal, lambda: client.delete(f"{root}/1")),
                    pool.submit(read_until_refused, client, dict(files)),
                ]
            for one in refused:
                assert f"needs {K + 1} of {VOTERS} voters" in one.result()

            check_majorities(acknowledged(program))

        # The refused three may still happen, once and whole; all else is as it was.
        after = await_recovery(client, before)
        for agent, earlier in zip(after.agents, before.agents, strict=True):
            assert (agent.pid, agent.incarnation) == (earlier.pid, earlier.incarnation)
        client.write(f"{root}/afterwards", b"on it goes")
        found: Files = {entry.path: client.read(entry.path) for entry in client.list(root)}
        assert found.pop(f"{root}/afterwards") == b"on it goes"
        assert found.pop(f"{root}/new", b"new") == b"new"
        assert found.pop(f"{root}/1", files[f"{root}/1"]) == files[f"{root}/1"]
        moved = [found.pop(path) for path in (f"{root}/0", f"{root}/moved") if path in found]
        assert moved == [files[f"{root}/0"]]
        assert found == {p: d for p, d in files.items() if p not in (f"{root}/0", f"{root}/1")}


def agent_processes(program: Program) -> set[int]:
    holder = record_of(descriptor.load(program.name)).holder.pid
    found = set()
    for pid in session_of(holder):
        try:
            if "AgentActor" in " ".join(psutil.Process(pid).cmdline()):
                found.add(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_k_plus_1_voters_that_lost_their_memory_never_pass_emptiness_for_the_truth(
    program: Program, rng: random.Random
) -> None:
    """The end of this cluster: nobody can say any more what was acknowledged."""
    with connect(program.name, timeout_s=SHORT_TIMEOUT_S) as client:
        client.write("/last", b"1")
        before = await_recovery(client, client.status())
        pids = {agent.pid for agent in before.agents}
        kill(before, rng.sample(range(VOTERS), K + 1))
        eventually(lambda: len(agent_processes(program) - pids) == K + 1, RECOVERY_TIMEOUT_S)
        with ThreadPoolExecutor(4) as pool:
            refused = [
                pool.submit(refusal, lambda: client.write("/new", b"new")),
                pool.submit(refusal, lambda: client.read("/last")),
                pool.submit(refusal, lambda: client.delete("/last")),
                pool.submit(refusal, lambda: list(client.list("/"))),
            ]
        for one in refused:
            # In the words of a voter that has its memory, or of one that lost it.
            assert "NoQuorum" in one.result()
            assert "lost its memory" in one.result() or "lost their memory" in one.result()
    assert "--reset" in program.refused(exits.UNAVAILABLE, "up", *SETTINGS)
