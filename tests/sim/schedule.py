"""One schedule: a seed, from its plan to its verdict."""

from dataclasses import dataclass
from random import Random

from diskless.namespace import leases
from diskless.namespace.replication import Status, VoterMachine
from tests.sim.checker import WALL_SLACK_MS, Checker, Violation
from tests.sim.clients import Client, Drainer, Prober
from tests.sim.leases import LEASE_MS
from tests.sim.mutants import MUTANTS
from tests.sim.nemesis import Nemesis
from tests.sim.plan import Plan, make_plan
from tests.sim.sharing import Part, replaced, small_sizes
from tests.sim.world import WALL_MS, Machine, World

HEAL_MS_MAX = 20_000
"""How long a whole world may take until all voters agree and all clients are served."""
CHURN_VIEWS = 6
CHURN_MS = 900
CHURN_SHARE_MIN = 0.4
"""The part of the time that must be counted although leaders change this often."""


@dataclass
class Outcome:
    seed: int
    violation: str | None
    events: int
    ops: int
    reads: int
    writes: int
    snapshots: int
    views: int
    boots: int
    story: str | None
    k: int
    trace: list[str] | None = None


def run_schedule(
    seed: int, mutant: str | None = None, *, story: str | None = None, trace: bool = False
) -> Outcome:
    random = Random(seed)
    plan = make_plan(random, story)
    parts = [Part(leases, "LEASE_MS", LEASE_MS), *(small_sizes() if plan.small_nodes else [])]
    if mutant is not None and (part := MUTANTS[mutant].part) is not None:
        parts.append(part)
    with replaced(parts):
        return _run(seed, random, plan, mutant, trace=trace)


def _run(seed: int, random: Random, plan: Plan, mutant: str | None, *, trace: bool) -> Outcome:
    checker = Checker(wall_ms=WALL_MS, liars=len(plan.liars))
    replica: type[VoterMachine] = VoterMachine
    if mutant is not None:
        replica = MUTANTS[mutant].replica
        plan.ignore_sessions = MUTANTS[mutant].ignore_sessions
    world = World(plan, random, checker, replica)
    if trace:
        world.trace = []
        world.say(f"{plan}")
    violation = None
    try:
        clients = [Client(number, world) for number in range(plan.clients)]
        Prober(world)
        Drainer(world)
        nemesis = Nemesis(world)
        world.run(plan.duration_ms)
        nemesis.heal()
        if not world.run(world.now + HEAL_MS_MAX, lambda: converged(world, clients)):
            raise Violation(f"no convergence {HEAL_MS_MAX} ms after healing: {picture(world)}")
        if plan.churn:
            churn(world, clients)
        checker.finish(states(world))
    except Violation as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a broken protocol runs into
        violation = f"{error!r} {_where(error)}"
    return Outcome(
        seed=seed,
        violation=violation,
        events=world.events,
        ops=len(checker.order),
        reads=checker.reads,
        writes=checker.writes,
        snapshots=checker.snapshots,
        views=max((replica.view for _, replica in world.live()), default=0),
        boots=sum(node.boot for node in world.nodes),
        story=plan.story,
        k=plan.k,
        trace=world.trace,
    )


def _where(error: BaseException) -> str:
    last = error.__traceback__
    assert last is not None
    while last.tb_next is not None:
        last = last.tb_next
    return f"at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"


def converged(world: World, clients: list[Client]) -> bool:
    if not all(client.done for client in clients):
        return False
    replicas = [replica for node, replica in world.live() if node.is_alive]
    first = replicas[0]
    return sorted(replica.slot for replica in replicas) == list(range(world.plan.voters)) and all(
        replica.status is Status.NORMAL
        and replica.view == first.view
        and replica.applied == replica.commit == replica.log.last == first.log.last
        for replica in replicas
    )


def churn(world: World, clients: list[Client]) -> None:
    """Leaders come and go while nothing is logged: time must elapse all the same. Then new
    commands tell the wall time that most clocks show."""
    began, before = world.now, elapsed(world)
    for _ in range(CHURN_VIEWS):
        leader = world.leader()
        for node in world.nodes:
            if leader is not None and node.slot != leader.slot:
                world.suspect(node, leader.slot)
        world.run(world.now + CHURN_MS)
    if not world.run(world.now + HEAL_MS_MAX, lambda: converged(world, clients)):
        raise Violation(f"no convergence after leaders came and went: {picture(world)}")
    passed, counted = world.now - began, elapsed(world) - before
    if counted < CHURN_SHARE_MIN * passed:
        raise Violation(f"{counted} ms elapsed in {passed:.0f} while leaders came and went")
    ops, resumed = len(world.checker.order), world.now
    for client in clients:
        client.go_on()
    if not world.run(world.now + HEAL_MS_MAX, lambda: converged(world, clients)):
        raise Violation(f"no convergence after leaders came and went: {picture(world)}")
    if len(world.checker.order) > ops and len(world.plan.liars) <= 1:
        (time_ms, _), _, _ = world.checker.order[-1][0]
        behind = WALL_MS + resumed - time_ms
        if behind > WALL_SLACK_MS:
            raise Violation(f"the log's wall time is {behind:.0f} ms behind")


def elapsed(world: World) -> int:
    return max(
        (r.elapsed_ms(node.clock(world.now)) for node, r in world.live() if node.is_alive),
        default=0,
    )


def states(world: World):  # type: ignore[no-untyped-def]
    found = {}
    for node, replica in world.live():
        if node.is_alive:
            assert isinstance(replica.machine, Machine)
            found[node.slot] = (replica.applied, replica.machine.state)
    return found


def picture(world: World) -> str:
    return "; ".join(
        f"{node.name}: {replica.status.value} view {replica.view} op {replica.log.last} "
        f"commit {replica.commit} applied {replica.applied}"
        for node, replica in world.live()
    )
