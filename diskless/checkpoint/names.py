"""The names of files in a checkpoint, as Spark gives them. Pure: nothing is read here.

All paths are relative to the checkpoint. Spark numbers batches from 0 in `offsets/` and
`commits/`, and versions of the state from 1: batch N makes version N+1. In the second format of
the state a version's files also have an id, which the commit of its batch names.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

OFFSETS, COMMITS, STATE, SOURCES, METADATA = "offsets", "commits", "state", "sources", "metadata"
SINK_LOG = "_spark_metadata"
"""In the directory of a file sink, with an entry for each batch."""
DELTA, SNAPSHOT, ZIP, CHANGELOG = "delta", "snapshot", "zip", "changelog"
WHOLE = frozenset((SNAPSHOT, ZIP))
"""Kinds of files that hold a version without others before it."""
HDFS, ROCKSDB = "hdfs", "rocksdb"
DEFAULT_STORE = "default"
"""In an operator's metadata, the store whose files lie in the partition's directory itself."""

_NUMBER = re.compile(r"[0-9]{1,18}")
_LOG = re.compile(r"([0-9]{1,18})(\.compact)?")
_VERSION = re.compile(r"([0-9]{1,18})(?:_([0-9a-fA-F-]{36}))?\.(delta|snapshot|zip|changelog)")


class LogFile(NamedTuple):
    """A numbered file of a metadata log."""

    number: int
    compact: bool
    """Whether it holds all entries before it too."""


class Store(Struct, frozen=True, gc=False):
    """One state store: of an operator, in a partition. Most operators have one, of no name.

    There may be tens of thousands of these and of what follows: the collector of cycles, which
    stops everything else meanwhile, need not look at them."""

    operator: int
    partition: int
    name: str


class StateFile(Struct, frozen=True, gc=False):
    store: Store
    version: int
    id: str
    kind: str
    path: str


def is_number(text: str) -> bool:
    """Whether it is a number as Spark writes them into names and settings."""
    return _NUMBER.fullmatch(text) is not None


def parse_log(name: str) -> LogFile | None:
    """What a name in a metadata log means; None for what is no entry."""
    found = _LOG.fullmatch(name)
    return LogFile(int(found[1]), bool(found[2])) if found else None


def parse_state(path: str) -> StateFile | None:
    """What `state/OPERATOR/PARTITION[/STORE]/FILE` means; None for what is no version of one."""
    parts = path.split("/")
    if not 4 <= len(parts) <= 5 or parts[0] != STATE:
        return None
    found = _VERSION.fullmatch(parts[-1])
    if found is None or not is_number(parts[1]) or not is_number(parts[2]):
        return None
    name = parts[3] if len(parts) == 5 else ""
    store = Store(int(parts[1]), int(parts[2]), name)
    return StateFile(store, int(found[1]), found[2] or "", found[3], path)


def numbers_in(paths: Iterable[str], log: str) -> dict[int, str]:
    """The entries of a metadata log, by number; a compact one counts before a plain one."""
    found: dict[int, str] = {}
    above = f"{log}/"
    for path in paths:
        entry = parse_log(path[len(above) :]) if path.startswith(above) else None
        if entry is not None and (entry.compact or entry.number not in found):
            found[entry.number] = path
    return found
