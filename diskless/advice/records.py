"""What records tell: a query's batches and runs from its notes, failures from the log. Pure.

A *run* of a query is from one start of it to the next. What a listener noted of its batches says
how long each took and what of that a checkpoint was; between the last batch of a run and the first
of the next lies a failure, unless that took so long that somebody meant it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from diskless.model import Event, parse_slot
from diskless.notes import BatchNote

STOPPED_MS = 3600 * 1000
"""Between two runs: after so long it was stopped, and did not fail."""
TOGETHER_MS = 15_000
"""Agents that go within it went together: their host did."""
QUIET_MS = 60_000
"""After a failure, or a move of repair: a move that comes later is for something else."""
KINDS = ("up", "down", "repair")
"""Of the events that tell of agents."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """What the notes of one query come to. Times are in seconds."""

    noted: int
    """Batches that were measured: all but the first of each run, which makes up for its start."""
    costs_s: tuple[float, ...]
    """What each of them would have cost with no row in it: its two logs, the commit of its state
    on all cores, and Spark's own planning."""
    checkpoints_s: tuple[float, ...]
    """Of those, what is written."""
    triggers_s: tuple[float, ...]
    interval_s: float
    """Between the starts of two batches, mostly; 0 if no two are known."""
    updated: float
    """Rows of the state that a batch changes, on average."""
    runs: int
    running_s: float
    """For which it ran, as far as that is known."""
    restarts_s: tuple[float, ...]
    """How long each restart took after a failure."""
    starts_s: tuple[float, ...]
    """From a start to its first batch, as far as they are known."""
    serial: bool
    """Whether commits of partitions are counted as if one came after the other: nobody told how
    many are made at once."""


def read_notes(notes: Sequence[BatchNote]) -> Batches:
    """From notes in the order of time."""
    timed = [note for note in notes if note.trigger_ms is not None]
    runs = _runs(timed)
    steady = [note for run in runs for note in run[1:]]
    gaps_ms = [
        after.time_ms - before.time_ms
        for run in runs
        for before, after in pairwise(run)
        if after.batch == before.batch + 1
    ]
    interval_s = median(gaps_ms) / 1000 if gaps_ms else 0.0
    updated = [note.state_updated or 0 for note in steady]
    return Batches(
        noted=len(steady),
        costs_s=tuple(_written_s(note) + _planned_s(note) for note in steady),
        checkpoints_s=tuple(_written_s(note) for note in steady),
        triggers_s=tuple((note.trigger_ms or 0) / 1000 for note in steady),
        interval_s=interval_s,
        updated=sum(updated) / len(updated) if updated else 0.0,
        runs=len(runs),
        running_s=sum(_lasted_ms(run) for run in runs) / 1000,
        restarts_s=tuple(_restarts_s(runs, interval_s)),
        starts_s=tuple(_starts_s(runs)),
        serial=any(note.state_commit_ms and not note.tasks for note in steady),
    )


def _runs(notes: Iterable[BatchNote]) -> list[list[BatchNote]]:
    """The same batch again, or one before it, is of another run too, whoever tells."""
    runs: list[list[BatchNote]] = []
    for note in notes:
        last = runs[-1][-1] if runs else None
        if last is None or note.started_ms != last.started_ms or note.batch <= last.batch:
            runs.append([])
        runs[-1].append(note)
    return runs


def _written_s(note: BatchNote) -> float:
    state_ms = note.state_commit_ms or 0
    shared_ms = state_ms / note.tasks if note.tasks else min(state_ms, note.add_batch_ms or 0)
    return ((note.wal_commit_ms or 0) + (note.commit_offsets_ms or 0) + shared_ms) / 1000


def _planned_s(note: BatchNote) -> float:
    steps = (note.latest_offset_ms, note.get_batch_ms, note.planning_ms)
    return sum(step or 0 for step in steps) / 1000


def _end_ms(note: BatchNote) -> int:
    return note.time_ms + (note.trigger_ms or 0)


def _lasted_ms(run: Sequence[BatchNote]) -> int:
    began_ms = run[0].started_ms if run[0].started_ms is not None else run[0].time_ms
    return max(_end_ms(run[-1]) - began_ms, 0)


def _late_ms(run: Sequence[BatchNote]) -> float:
    """How much longer its first batch took than those after it: it had state to load."""
    others = [note.trigger_ms or 0 for note in run[1:]]
    return max((run[0].trigger_ms or 0) - median(others), 0.0) if others else 0.0


def _restarts_s(runs: Sequence[Sequence[BatchNote]], interval_s: float) -> Iterable[float]:
    """The batch that failed had come half way, on average; that is lost work, and no restart."""
    for before, after in pairwise(runs):
        gap_ms = after[0].time_ms - _end_ms(before[-1])
        if 0 <= gap_ms <= STOPPED_MS:
            yield (max(gap_ms - 500 * interval_s, 0.0) + _late_ms(after)) / 1000


def _starts_s(runs: Sequence[Sequence[BatchNote]]) -> Iterable[float]:
    for run in runs:
        if run[0].started_ms is not None:
            yield (max(run[0].time_ms - run[0].started_ms, 0) + _late_ms(run)) / 1000


@dataclass(frozen=True, kw_only=True)
class Failures:
    """What the log tells of agents and their hosts."""

    agents: int
    hosts: int
    """How many of them failed, each time counted."""
    agents_s: float
    hosts_s: float
    """For how long they were looked at, all together; no time if hosts cannot be told apart."""
    rebuilds_s: tuple[float, ...]
    """From a failure until the last shard was moved."""


def read_events(
    events: Iterable[Event], hosts: Mapping[str, str], *, since_ms: int, now_ms: int
) -> Failures:
    """From events of `KINDS` in their order, of a log that reaches back to `since_ms`. `hosts` has
    the host of each agent. A restart that somebody wanted counts as well: the log cannot tell."""
    downs: list[tuple[int, str]] = []
    moves_ms: list[int] = []
    up: dict[str, bool] = {}
    for event in events:
        if event.kind == "repair":
            moves_ms.append(event.time_ms)
            continue
        slot = _slot(event)
        if slot not in hosts:
            continue
        # One that begins anew before anybody missed it has failed too.
        failed = up.get(slot, True) if event.kind == "down" else up.get(slot, False)
        up[slot] = event.kind == "up"
        if failed:
            downs.append((event.time_ms, slot))
    looked_s = max(now_ms - since_ms, 0) / 1000
    several = len(set(hosts.values())) > 1
    return Failures(
        agents=len(downs),
        hosts=_hosts_lost(downs, hosts) if several else 0,
        agents_s=looked_s * len(hosts),
        hosts_s=looked_s * len(set(hosts.values())) if several else 0.0,
        rebuilds_s=tuple(_rebuilds_s([at for at, _ in downs], moves_ms)),
    )


def _slot(event: Event) -> str:
    """Of the agent that an event's words begin with."""
    word = event.text.partition(" ")[0]
    try:
        parse_slot(word)
    except ValueError:
        return ""
    return word


def _hosts_lost(downs: Sequence[tuple[int, str]], hosts: Mapping[str, str]) -> int:
    """How often all agents of a host went together."""
    lost = 0
    for host in set(hosts.values()):
        theirs = {slot for slot, where in hosts.items() if where == host}
        waiting: dict[str, int] = {}
        for at_ms, slot in downs:
            if slot not in theirs:
                continue
            waiting[slot] = at_ms
            if theirs == {one for one, ms in waiting.items() if at_ms - ms <= TOGETHER_MS}:
                lost += 1
                waiting.clear()
    return lost


def _rebuilds_s(downs_ms: Sequence[int], moves_ms: Sequence[int]) -> Iterable[float]:
    """Moves follow a failure and each other without long pauses, or they are not for it. Of
    failures that come before another is made good, the last one counts."""
    ordered = sorted(downs_ms)
    for number, at_ms in enumerate(ordered):
        next_ms = ordered[number + 1] if number + 1 < len(ordered) else math.inf
        last_ms = at_ms
        for ms in moves_ms:
            if last_ms < ms <= last_ms + QUIET_MS and ms < next_ms:
                last_ms = ms
        if last_ms > at_ms:
            yield (last_ms - at_ms) / 1000
