"""Spark's checkpoints in a cluster, found by what Spark has written, without Spark.

A directory with `offsets` and `commits` in it is the checkpoint of a query; its last committed
batch is the highest number in `commits`. Nothing is read, and nothing below one is looked at.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from diskless.errors import NotFound, PathIsFile

if TYPE_CHECKING:
    from diskless.client import Client
    from diskless.protocol.messages import Status

OFFSETS, COMMITS = "offsets", "commits"
ENTRIES_MAX = 50_000
"""Names that are looked at before the search is given up."""


class Checkpoint(NamedTuple):
    path: str
    batch: int | None
    """The last that was committed; None if none was."""


def find_checkpoints(client: "Client", top: str = "/") -> Iterator[Checkpoint]:
    """Those at and below a directory, those nearest to it first; not all if there is much."""
    waiting = deque([top])
    left = ENTRIES_MAX
    while waiting and left > 0:
        path = waiting.popleft()
        found = []
        for status in _entries(client, path):
            left -= 1
            if status.directory:
                found.append(status.path)
            if left <= 0:
                break
        names = {name.rpartition("/")[2] for name in found}
        if {OFFSETS, COMMITS} <= names:
            yield Checkpoint(path, last_batch(client, f"{path.rstrip('/')}/{COMMITS}"))
        else:
            waiting.extend(found)


def last_batch(client: "Client", commits: str) -> int | None:
    """The highest batch that a directory of commits names."""
    numbers = [
        int(name)
        for status in _entries(client, commits)
        if (name := status.path.rpartition("/")[2]).isdecimal()
    ]
    return max(numbers, default=None)


def _entries(client: "Client", path: str) -> Iterator["Status"]:
    """Of a directory that may go while it is looked at."""
    try:
        yield from client.list(path)
    except (NotFound, PathIsFile):
        return
