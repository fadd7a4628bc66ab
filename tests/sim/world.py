"""Voters, the network between them, and time: everything a seed decides.

Time is true time in milliseconds; each voter has a monotonic clock that runs at its own
rate, and a wall clock that has nothing to do with it. Everything that happens is an event
in one heap, so a schedule is a function of its seed. Faults are switched by the nemesis;
nothing here decides to break anything.

A slot has a seat (`nodes`), and may have *doubles*: earlier processes that somebody gave
up while they lived, when another took the seat. Links are between processes: that in a
seat is named by its slot, a double has a number of its own.
"""

import heapq
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from diskless.namespace.replication import (
    Effect,
    HandedOver,
    NamespaceMachine,
    Rejected,
    Reply,
    Restored,
    Send,
    Status,
    VoterMachine,
)
from diskless.namespace.replication import messages as m
from diskless.namespace.replication.core import OPERATIONAL
from diskless.namespace.sessions import _NOT_RUN
from tests.sim.checker import Checker, mutations_of, new_state
from tests.sim.plan import Plan

CLUSTER = "c"
HELD = (m.StartViewChange, m.DoViewChange)
"""What a link holds back that is told to, unless it is told otherwise."""
NEVER_MS = float("-inf")
DOUBLES_MAX = 2
"""Living ones of a slot, beside the one in its seat."""
WALL_MS = 1_700_000_000_000
"""What a right wall clock says when a schedule begins."""


class Machine(NamespaceMachine):
    """The real namespace, watched by the checker."""

    def __init__(self, slot: int, checker: Checker, ignore_sessions: bool = False) -> None:
        super().__init__()
        self.state = new_state()
        self.state.journal = self.journal
        self._slot = slot
        self._checker = checker
        self._at = (0, 0)
        self._ignore_sessions = ignore_sessions

    def apply(self, op: int, time_ms: int, elapsed_ms: int, command: bytes) -> Any:
        index = self._at[1] + 1 if self._at[0] == op else 0
        self._at = (op, index)
        decoded = self._checker.decode(command)
        if self._ignore_sessions:
            for session, sequence in mutations_of(decoded):
                self._forget_answer(session, sequence)
        results = self.state.apply(decoded, now_ms=time_ms, elapsed_ms=elapsed_ms, op=op)
        self._checker.applied(self._slot, op, index, (time_ms, elapsed_ms), command, results)
        return results

    def _forget_answer(self, session: int, sequence: int) -> None:
        known = self.state.sessions._sessions[session]
        if known.get(sequence) is not None:
            weight = known.bytes_used
            known._row[2 * (sequence - known._first)] = _NOT_RUN
            if known.refusals:
                known.refusals.pop(sequence, None)
            self.state.sessions.bytes_used += known.bytes_used - weight


class Node:
    """A process of a slot; the one in the seat may be another after a restart."""

    def __init__(self, slot: int, *, rate: float, offset: float) -> None:
        self.slot = slot
        self.name = slot
        self.rate = rate
        self.offset = offset
        self.wall_offset = 0.0
        self.set_ms = NEVER_MS  # when its wall clock was set last
        self.replica: VoterMachine | None = None
        self.boot = 0
        self.paused_until = 0.0
        self.stopped_until = NEVER_MS  # a pause that only its wall clock counts
        self.replies: dict[int, Callable[[Any], None]] = {}
        self.requests = 0
        self.confirm: Callable[[], None] | None = None  # the read it was stopped in

    def clock(self, now: float) -> int:
        return int(self.offset + now * self.rate)

    def wall(self, now: float) -> int:
        return int(WALL_MS + now + self.wall_offset)

    @property
    def is_alive(self) -> bool:
        return self.replica is not None and self.replica.status is not Status.SUPERSEDED


class World:
    def __init__(
        self,
        plan: Plan,
        random: Random,
        checker: Checker,
        replica: type[VoterMachine] = VoterMachine,
    ) -> None:
        self.plan = plan
        self.random = random
        self.checker = checker
        checker.true_ms = lambda: self.now
        self.now = 0.0
        self.healed = False
        self.trace: list[str] | None = None
        self.events = 0
        self._replica = replica
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.cut: set[tuple[int, int]] = set()
        self.held: dict[tuple[int, int], list[m.Message]] = {}
        self.holds: tuple[type, ...] = HELD
        self.lags: dict[int, float] = {}  # how much later whatever a voter sends or gets comes
        self.leaders_lag = 0.0  # the same, of whoever leads
        self.handovers: list[tuple[float, int, int]] = []  # when, from whom, to whom
        self.on_send: list[Callable[[Node, m.Message], None]] = []
        drift = plan.timing.drift_max
        self.nodes = [
            Node(slot, rate=1 + random.uniform(-drift, drift), offset=random.uniform(0, 9999))
            for slot in range(plan.voters)
        ]
        self.doubles: list[Node] = []
        self._announced: list[m.Life] = [(0, 0)] * plan.voters
        for node in self.nodes:
            node.replica = self._new_replica(node)
            self._do(node, node.replica.form(CLUSTER, node.clock(0)))
            self._start_ticks(node)

    # -- time --------------------------------------------------------------------

    def at(self, delay: float, run: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, run, args))

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Runs events up to a time; ends early, and says True, once `done` holds."""
        heap, check = self._heap, 0
        while heap and heap[0][0] <= until:
            self.now, _, run, args = heapq.heappop(heap)
            run(*args)
            self.events += 1
            check += 1
            if done is not None and check % 64 == 0 and done():
                return True
        self.now = max(self.now, until)
        return done is not None and done()

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.1f}  {text}")

    # -- voters ------------------------------------------------------------------

    def _new_replica(self, node: Node) -> VoterMachine:
        plan, slot = self.plan, node.slot
        return self._replica(
            slot=slot,
            voters=plan.voters,
            machine=lambda: Machine(slot, self.checker, plan.ignore_sessions),
            random=Random(self.random.getrandbits(32)),
            timing=plan.timing,
            limits=plan.limits,
        )

    def live(self) -> Iterator[tuple[Node, VoterMachine]]:
        for node in (*self.nodes, *self.doubles):
            if node.replica is not None:
                yield node, node.replica

    def processes(self, slot: int) -> list[Node]:
        return [self.nodes[slot], *(node for node in self.doubles if node.slot == slot)]

    def impaired(self) -> int:
        """How many slots are dead or without their memory, or soon will be."""
        return sum(not self._is_whole(slot) for slot in range(self.plan.voters))

    def _is_whole(self, slot: int) -> bool:
        """Whether the latest life of a slot that anybody has heard of, or will if a late
        message arrives, has its memory, and nobody is about to begin another."""
        latest = max(self._announced[slot], *(r.vector[slot] for _, r in self.live()))
        replicas = [node.replica for node in self.processes(slot) if node.replica is not None]
        return not any(r.status is Status.RECOVERING for r in replicas) and any(
            r.status in OPERATIONAL and r.vector[slot] == latest for r in replicas
        )

    def leader(self) -> Node | None:
        """The leader of the latest view, if there is one."""
        leading = [node for node, replica in self.live() if replica.leads]
        return max(leading, key=lambda node: node.replica.view, default=None)  # type: ignore[union-attr]

    def crash(self, node: Node) -> bool:
        """Kills a voter, memory and all, if that leaves at most k without memory."""
        replica = node.replica
        if replica is None:
            return False
        if self._is_whole(node.slot) and self.impaired() >= self.plan.k:
            return False
        self.say(f"crash {node.name} ({replica.status.value} view {replica.view})")
        node.replica = None
        if node in self.doubles:
            self.doubles.remove(node)
        node.replies.clear()
        node.paused_until, node.stopped_until = 0.0, NEVER_MS
        node.confirm = None
        return True

    def restart(self, node: Node) -> None:
        """Begins a new life in a seat, if there is none whose time has not come."""
        node = self.nodes[node.slot]
        if any(other.is_alive for other in self.processes(node.slot)):
            return
        self.say(f"restart {node.slot}")
        self._boot(node)

    def _boot(self, node: Node) -> None:
        node.boot += 1
        # A process may start with another offset; its clock's rate is the machine's.
        node.offset += self.random.uniform(-100, 100)
        replica = node.replica = self._new_replica(node)
        self._do(node, replica.recover(CLUSTER, node.clock(self.now)))
        self._start_ticks(node)

    def replace(self, node: Node) -> Node | None:
        """Begins a new life beside one that goes on, as its double, if at most k slots are
        impaired then."""
        slot, replica = node.slot, node.replica
        living = sum(process.is_alive for process in self.processes(slot))
        if node is not self.nodes[slot] or replica is None or living > DOUBLES_MAX:
            return None
        if self._is_whole(slot) and self.impaired() >= self.plan.k:
            return None
        node.name = self.plan.voters + self._count
        self.doubles.append(node)
        heir = self.nodes[slot] = Node(slot, rate=node.rate, offset=node.offset)
        heir.wall_offset, heir.set_ms = node.wall_offset, node.set_ms
        heir.boot = node.boot
        self.say(f"{slot} is given up as {node.name} ({replica.status.value})")
        self._boot(heir)
        return heir

    def stop(self, node: Node, duration: float) -> None:
        """A pause that the monotonic clock does not count, as of a virtual machine. Not just
        after its wall clock was set: that might hide it, and is assumed not to."""
        recent = self.now - self.plan.timing.lease_ms
        if node.replica is not None and node.paused_until <= self.now and node.set_ms < recent:
            self.say(f"stop {node.name} for {duration:.0f}")
            node.paused_until = node.stopped_until = self.now + duration
            node.offset -= duration * node.rate

    def set_wall(self, node: Node, offset: float) -> None:
        """Sets a machine's wall clock, unless it is stopped, or just was."""
        recent, processes = self.now - self.plan.timing.lease_ms, self.processes(node.slot)
        if all(process.stopped_until < recent for process in processes):
            self.say(f"wall clock of {node.slot} is off by {offset:.0f}")
            for process in processes:
                process.wall_offset, process.set_ms = offset, self.now

    def pause(self, node: Node, duration: float) -> None:
        if node.replica is not None:
            self.say(f"pause {node.name} for {duration:.0f}")
            node.paused_until = max(node.paused_until, self.now + duration)

    def _start_ticks(self, node: Node) -> None:
        self.at(self.random.uniform(0, self.plan.tick_ms), self._tick, node, node.boot)

    def _tick(self, node: Node, boot: int) -> None:
        replica = node.replica
        if replica is None or node.boot != boot or self._sleeps(node, self._tick, node, boot):
            return
        effects = replica.tick(node.clock(self.now), wall_ms=node.wall(self.now))
        if effects:
            self._do(node, effects)
        self.at(self.plan.tick_ms, self._tick, node, boot)

    def _sleeps(self, node: Node, run: Callable[..., None], *args: Any) -> bool:
        """Puts an event off if the voter is paused; else ends what it was stopped in."""
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now + 0.01, run, *args)
            return True
        if node.confirm is not None:
            confirm, node.confirm = node.confirm, None
            confirm()
        return False

    def suspect(self, node: Node, slot: int) -> None:
        if node.replica is not None and not self._sleeps(node, self.suspect, node, slot):
            self._do(node, node.replica.suspect(slot, node.clock(self.now)))

    def hand_over(self, node: Node, unfit: set[int]) -> None:
        """What the agent of a leader does whose end is announced, with those of others."""
        if node.replica is None or self._sleeps(node, self.hand_over, node, unfit):
            return
        heir, effects = node.replica.hand_over(unfit, node.clock(self.now))
        if heir is not None:
            self.handovers.append((self.now, node.slot, heir))
            self.say(f"{node.name} is about to end, as are {unfit}: {heir} shall lead")
        self._do(node, effects)

    def _do(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                message = effect.message  # type: ignore[union-attr]
                if type(message) is m.Recovery:
                    life = message.vector[node.slot]
                    self._announced[node.slot] = max(self._announced[node.slot], life)
                for to in effect.to:  # type: ignore[union-attr]
                    for process in self.processes(to):
                        if process.is_alive or process is self.nodes[to]:
                            self.send(node, process, message)
                for hook in self.on_send:
                    hook(node, message)
            elif kind is Reply or kind is Rejected:
                if kind is Reply:
                    self._acknowledge(node, effect)  # type: ignore[arg-type]
                answer = node.replies.pop(effect.request_id, None)  # type: ignore[union-attr, arg-type]
                if answer is not None:
                    answer(effect)
            elif kind is HandedOver:
                self.handovers.append((self.now, node.slot, effect.heir))  # type: ignore[union-attr]
                self.say(f"voter {node.slot}: {effect}")
            elif kind is Restored:
                assert node.replica is not None
                machine = node.replica.machine
                assert isinstance(machine, Machine)
                self.checker.restored(node.slot, node.replica.applied, machine.state)
            elif self.trace is not None:
                self.say(f"voter {node.name}: {effect}")

    def _acknowledge(self, node: Node, reply: Reply) -> None:
        assert node.replica is not None
        self.checker.acknowledged(
            node.replica.view, node.slot, reply.op, reply.voters, quorum=self.plan.voters // 2 + 1
        )

    # -- network -----------------------------------------------------------------

    def send(self, sender: Node, to: Node, message: m.Message) -> None:
        if self.trace is not None:
            self.say(f"{sender.name} -> {to.name} {message}")
        link = (sender.name, to.name)
        held = self.held.get(link)
        if held is not None and isinstance(message, self.holds):
            held.append(message)
            return
        plan, random = self.plan, self.random
        if self.healed:
            self.at(random.uniform(0.2, 2), self._deliver, sender.slot, to, message)
            return
        luck = random.random()
        if link in self.cut:
            # What a broken link has swallowed may still come out at its other end later.
            if luck < plan.late:
                self.at(random.uniform(100, 4000), self._deliver, sender.slot, to, message)
            return
        if luck < plan.drop:
            return
        luck -= plan.drop
        delay = random.uniform(0.2, plan.latency_ms)
        if self.lags or self.leaders_lag:
            delay += max(self._lag(sender.slot), self._lag(to.slot))
        if luck < plan.late:
            delay = random.uniform(100, 4000)
        elif luck < plan.late + plan.twice:
            late = delay * random.uniform(1, 300)
            self.at(late, self._deliver, sender.slot, to, message)
        if plan.codec:
            message = m.decode(m.encode(message))
        self.at(delay, self._deliver, sender.slot, to, message)

    def _lag(self, slot: int) -> float:
        replica = self.nodes[slot].replica
        leads = replica is not None and replica.leads
        return max(self.lags.get(slot, 0.0), self.leaders_lag if leads else 0.0)

    def release(self, link: tuple[int, int]) -> None:
        sender, to = link
        for message in self.held.pop(link, []):
            self.at(self.random.uniform(0.2, 5), self._deliver, sender, self.nodes[to], message)

    def _deliver(self, sender: int, node: Node, message: m.Message) -> None:
        """To whatever life the process is in by then."""
        replica = node.replica
        if replica is None or self._sleeps(node, self._deliver, sender, node, message):
            return
        if isinstance(message, m.PrepareOk):
            self.checker.answered(message.view, sender, message.op)
        effects = replica.receive(
            sender, message, node.clock(self.now), wall_ms=node.wall(self.now)
        )
        if effects:
            self._do(node, effects)

    # -- clients' doors ----------------------------------------------------------

    def door(self, slot: int) -> Node:
        """Whom clients of a slot find there: any of its processes that lives."""
        living = [node for node in self.processes(slot) if node.is_alive]
        return self.random.choice(living) if living else self.nodes[slot]

    def submit(self, node: Node, command: bytes, answer: Callable[[Any], None]) -> None:
        replica = node.replica
        if replica is None or self._sleeps(node, self.submit, node, command, answer):
            return
        node.requests += 1
        node.replies[node.requests] = answer
        clock, wall = node.clock(self.now), node.wall(self.now)
        self._do(node, replica.submit(node.requests, command, clock, wall_ms=wall))

    def query(
        self, node: Node, read: Callable[[Machine], Any], answer: Callable[[Any, int], None]
    ) -> None:
        """Reads, and answers if the lease still holds afterwards; `answer` gets the op."""
        replica = node.replica
        if replica is None or self._sleeps(node, self.query, node, read, answer):
            return
        if not replica.leads:
            answer(Rejected(0, None, replica.leader), -1)  # type: ignore[arg-type]
            return
        machine = replica.machine
        assert isinstance(machine, Machine)
        found, op = read(machine), replica.applied

        def confirm() -> None:
            if replica.read_allowed(node.clock(self.now), wall_ms=node.wall(self.now)):
                answer(found, op)
            else:
                answer(Rejected(0, None, None), -1)  # type: ignore[arg-type]

        if not self.healed and self.random.random() < self.plan.pause_in_read:
            # Stopped between reading and asking: that comes first when it wakes up.
            self.pause(node, self.random.uniform(50, 1500))
            node.confirm = confirm
        else:
            confirm()
