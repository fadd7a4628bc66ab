"""How long the longest turn of an event loop is in a large namespace: a state made up of
commands, and the steps that agents take over it, one after the other.

Measured as the thread's own time on the processor, so that other processes do not count; the
collector of cycles runs as it does in an agent. No cluster is started: the figures are about
steps that nothing else can run beside, and those are pure.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from diskless.agent.leading.janitor import REAP_STRIPES_MAX, SWEEP_ENTRIES
from diskless.bench import works
from diskless.model import Extent, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace.snapshot import Restorer, snapshot
from diskless.namespace.state import NamespaceState
from diskless.namespace.survey import survey
from diskless.repair import Cluster, RepairPlan

DATA_SHARDS, PARITY_SHARDS, AGENTS = 4, 2, 12
STRIPE_BYTES = 1 << 20
FILES_PER_COMMAND = 500
FLAT_SHARE = 0.3
"""Of the files, in one directory."""
REPACKED = 8
REBUILT = 10_000
SWEEPS = 200

Turns = dict[str, float]
"""The longest turn of each step, in milliseconds."""


class _Made:
    """A state with stripes of two files each, half of every fourth dead, and small files."""

    def __init__(self, *, stripes: int, files: int) -> None:
        self.state = NamespaceState()
        for slot in range(AGENTS):
            self.do(c.AgentUp(slot, "boot", "a", "g", "s", f"host-{slot}", "n", 1))
        self.session = self.do(c.OpenSession())[0].number
        self.sequence = 0
        for number in range(stripes):
            self._put_stripe(number)
        flat = int(FLAT_SHARE * files)
        self._put_files("/flat", flat)
        for part, first in enumerate(range(flat, files, 1000)):
            self._put_files(f"/deep/{part}", min(1000, files - first))
        for number in range(0, stripes, 4):
            self.do(self.delete(f"/data/{number // 1000}/{number}-0"))

    def do(self, command: c.Command) -> tuple[Any, ...]:
        return self.state.apply(command, now_ms=1000, elapsed_ms=1000)

    def next(self) -> int:
        self.sequence += 1
        return self.sequence

    def delete(self, path: str) -> c.Delete:
        return c.Delete(self.session, self.next(), path, True)

    def put(self, *files: c.NewFile, stripes: tuple[Stripe, ...] = ()) -> c.Commit:
        return c.Commit(stripes, (c.Put(self.session, self.next(), False, files),))

    def _put_stripe(self, number: int) -> None:
        places = [Place((number + i) % AGENTS, 1) for i in range(DATA_SHARDS + PARITY_SHARDS)]
        stripe = Stripe(
            f"0.1.{number + 1}", DATA_SHARDS, PARITY_SHARDS, STRIPE_BYTES, tuple(places)
        )
        half = STRIPE_BYTES // 2
        files = (
            c.NewFile(
                f"/data/{number // 1000}/{number}-{n}",
                half,
                0,
                None,
                (Extent(stripe.id, n * half, half),),
            )
            for n in range(2)
        )
        self.do(self.put(*files, stripes=(stripe,)))

    def _put_files(self, folder: str, count: int) -> None:
        for first in range(0, count, FILES_PER_COMMAND):
            numbers = range(first, min(first + FILES_PER_COMMAND, count))
            self.do(self.put(*(c.NewFile(f"{folder}/{n}", 1, 0, b"1") for n in numbers)))

    def cluster(self) -> Cluster:
        return Cluster(
            agents=dict(self.state.agents),
            data_shards=DATA_SHARDS,
            parity_shards=PARITY_SHARDS,
            gone={1},
        )


def longest_turns(*, stripes: int, files: int) -> Turns:
    made = _Made(stripes=stripes, files=files)
    state, turns = made.state, Turns()
    turns[works.TURN_STATUS] = _ms(lambda: _status(state))
    turns[works.TURN_SUMMARY] = _ms(lambda: state.summary("/"))
    sparse = state.ledger.partly_dead.sparsest(state.health.is_readable)
    turns[works.TURN_REPACK] = _ms(lambda: list(islice(sparse, REPACKED)))
    turns[works.TURN_SNAPSHOT], turns[works.TURN_RESTORE] = _copy(state)
    turns[works.TURN_AGENT_DOWN] = _ms(lambda: (made.do(c.AgentDown(1, 1)), _status(state)))
    plans: list[RepairPlan] = []
    turns[works.TURN_PLAN] = _longest(_planning(made, plans))
    turns[works.TURN_WAVE] = _longest(islice(iter(plans[0].rebuild), REBUILT))
    for path in ("/flat", "/data", "/"):
        turns[works.turn_delete(path)] = _ms(lambda p=path: made.do(made.delete(p)))  # type: ignore[misc]
        turns[works.TURN_SWEEP] = max(
            turns.get(works.TURN_SWEEP, 0.0), _longest(islice(_sweeping(made), SWEEPS))
        )
    due = tuple(islice(state.ledger.freed_ms, REAP_STRIPES_MAX))
    turns[works.TURN_REAP] = _ms(lambda: made.do(c.Reap(due)))
    return turns


def _status(state: NamespaceState) -> object:
    state.health.settle()
    tally = state.health.tally()
    return tally.standings, tally.margin(PARITY_SHARDS), tally.margin_hosts(PARITY_SHARDS)


def _planning(made: _Made, plans: list[RepairPlan]) -> Iterator[None]:
    plans.append((yield from survey(made.state.ledger, made.cluster())))


def _sweeping(made: _Made) -> Iterator[None]:
    while made.state.doomed:
        made.do(c.Sweep(SWEEP_ENTRIES))
        yield


def _copy(state: NamespaceState) -> tuple[float, float]:
    """The longest turn of giving the state away, and of taking it in."""
    restorer = Restorer(NamespaceState())
    chunks = snapshot(state)
    giving = taking = 0.0
    while True:
        found: list[bytes] = []
        giving = max(giving, _ms(lambda: found.extend(islice(chunks, 1))))  # noqa: B023
        if not found:
            return giving, taking
        taking = max(taking, _ms(lambda: restorer.take(found[0])))  # noqa: B023


def _longest(steps: Iterator[Any]) -> float:
    longest = 0.0
    end = object()
    more = True
    while more:
        began = time.thread_time()
        more = next(steps, end) is not end
        longest = max(longest, time.thread_time() - began)
    return 1000 * longest


def _ms(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return 1000 * (time.thread_time() - began)
