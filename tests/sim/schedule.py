"""One schedule: a seed, from its plan to its verdict."""

from dataclasses import dataclass
from random import Random

from diskless.namespace.replication import Replica, Status
from tests.sim.checker import Checker, Violation
from tests.sim.clients import Client, Prober
from tests.sim.mutants import MUTANTS
from tests.sim.nemesis import Nemesis
from tests.sim.plan import make_plan
from tests.sim.world import Machine, World

HEAL_MS_MAX = 20_000
"""How long a whole world may take until all voters agree and all clients are served."""


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
    checker = Checker()
    replica: type[Replica] = Replica
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
        nemesis = Nemesis(world)
        world.run(plan.duration_ms)
        nemesis.heal()
        if not world.run(world.now + HEAL_MS_MAX, lambda: converged(world, clients)):
            raise Violation(f"no convergence {HEAL_MS_MAX} ms after healing: {picture(world)}")
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
    replicas = [node.replica for node in world.nodes]
    first = replicas[0]
    return first is not None and all(
        replica is not None
        and replica.status is Status.NORMAL
        and replica.view == first.view
        and replica.applied == replica.commit == replica.log.last == first.log.last
        for replica in replicas
    )


def states(world: World):  # type: ignore[no-untyped-def]
    found = {}
    for node, replica in world.live():
        assert isinstance(replica.machine, Machine)
        found[node.slot] = (replica.applied, replica.machine.state)
    return found


def picture(world: World) -> str:
    return "; ".join(
        f"{node.slot}: {replica.status.value} view {replica.view} op {replica.log.last} "
        f"commit {replica.commit} applied {replica.applied}"
        for node, replica in world.live()
    )
