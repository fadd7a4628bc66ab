"""What leaves memory first when the tier has it too. Pure.

What a query needs to start again stays longest: the newest batches of its checkpoint, and of
its state the last full snapshot with all that came after it. Older batches go first, and what
only snapshots show before them. Nothing here looks at a cluster: who asks has the names.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from diskless import policy
from diskless.policy import Table

HIGH_SHARE = 0.75
"""Of an agent's memory that lasts, from which on files are evicted: before clients' writes
have to wait, which they do at seven eighths."""
LOW_SHARE = 0.65
"""Until so little is left."""
HYDRATE_SHARE = 0.6
"""Up to which bytes come back: below the low mark, or they would go again at once."""
KEEP_BATCHES = 2
"""Batches that recovery needs, where no policy says how many are to stay."""

_NUMBER = re.compile(r"(\d{1,18})(?=$|[._])")
_FULL = (".snapshot", ".zip", ".compact")
_PARTIAL = (".delta", ".changelog")

Priority = Callable[[str], int]
"""Of a path: what has a higher one stays longer, and comes back earlier."""


def priorities(table: Table) -> Priority:
    """What the policies say now."""
    grades = policy.Grades.of(table)
    return lambda path: policy.priority_of(grades.at(path))


class Standing(IntEnum):
    """How much a file is needed, the least first."""

    ALONE = 0
    """No path leads to it, but for those of snapshots."""
    OLD = 1
    """Of a batch that no recovery begins with."""
    PLAIN = 2
    RECENT = 3
    """Of the newest batches of a checkpoint."""


class Candidate(NamedTuple):
    """A file that may be evicted; the least of them goes first."""

    priority: int
    standing: Standing
    id: int
    size: int
    layout: int
    path: str
    """Where it was found; empty if it is of snapshots alone."""


class Wishes(NamedTuple):
    """What the policies say of a directory."""

    pinned: bool
    keep_batches: int | None
    """None if no path says how many batches are to stay."""


def wishes(table: Table, path: str) -> Wishes:
    pinned = policy.effective(table, path, policy.PIN, default=policy.NO).value == policy.YES
    keep = policy.effective(table, path, policy.KEEP_IN_MEMORY, default="").value
    return Wishes(pinned, int(keep) if keep else None)


def batch_of(name: str) -> int | None:
    """The number of the batch, or of the version of state, that a file is named after."""
    found = _NUMBER.match(name)
    return int(found[1]) if found is not None else None


def newest_batch(names: Iterable[str]) -> int | None:
    """Of a checkpoint's offsets or commits."""
    return max((n for name in names if (n := batch_of(name)) is not None), default=None)


def first_needed(names: Sequence[str], *, newest: int, keep: int) -> int:
    """The least number that files of a directory must have to be needed by the newest `keep`
    batches. Where files build on each other that is the last full one which is old enough."""
    first = newest - keep + 1
    if not any(name.endswith((*_PARTIAL, ".compact")) for name in names):
        return first
    numbers = [
        n
        for name in names
        if name.endswith(_FULL) and (n := batch_of(name)) is not None and n <= first
    ]
    return max(numbers, default=0)


def standing_of(name: str, first: int | None) -> Standing:
    """Of a file in a directory of a checkpoint that needs all from number `first` on; None if the
    directory is of no checkpoint."""
    number = batch_of(name)
    if first is None or number is None:
        return Standing.PLAIN
    return Standing.RECENT if number >= first else Standing.OLD


def choose(
    candidates: Iterator[Candidate], *, stored_bytes: int, per_byte: float, files_max: int
) -> list[Candidate]:
    """The first of these, which come in order, until as many bytes of shards are freed: `per_byte`
    for each of a file's. No more of them are asked for than are taken."""
    chosen: list[Candidate] = []
    left = float(stored_bytes)
    while left > 0 and len(chosen) < files_max:
        candidate = next(candidates, None)
        if candidate is None:
            break
        chosen.append(candidate)
        left -= per_byte * candidate.size
    return chosen


def bytes_to_free(
    *, lasting: Sequence[int], bytes_max: Sequence[int], freed_bytes: int, evicting: bool
) -> int:
    """How many bytes of shards are to go, by each agent's memory that lasts and its limit. What is
    freed already and waits to be dropped counts as gone. Between the marks nothing begins, and
    what has started (`evicting`) continues."""
    fullest = max((a / b for a, b in zip(lasting, bytes_max, strict=True)), default=0.0)
    if fullest <= (LOW_SHARE if evicting else HIGH_SHARE):
        return 0
    return max(round((fullest - LOW_SHARE) * sum(bytes_max)) - freed_bytes, 0)
