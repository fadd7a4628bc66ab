"""What a path asks for: the keys there are, their good values, and what is inherited. Pure.

A policy is set on a path and holds for all that is below it, unless a path nearer to it says
something else. It belongs to the path, whatever is there: renames do not carry it along.
"""

from collections.abc import Mapping
from typing import NamedTuple

from diskless.errors import BadRequest

DURABILITY = "durability"
MEMORY, ASYNC, SYNC = "memory", "async", "sync"
VALUES: dict[str, tuple[str, ...]] = {DURABILITY: (MEMORY, ASYNC, SYNC)}
"""The good values of each key."""

Table = Mapping[str, Mapping[str, str]]
"""By path and key what was set there."""


class Effective(NamedTuple):
    value: str
    source: str
    """The path that it was set on; empty if it is the default."""


def check_key(key: str) -> None:
    """Raises BadRequest for a key that there is not."""
    if key not in VALUES:
        raise BadRequest(f"no policy {key[:80]!r}: there is {', '.join(sorted(VALUES))}")


def check(key: str, value: str) -> None:
    """Raises BadRequest for a key that there is not, or a value that it cannot have."""
    check_key(key)
    if value not in VALUES[key]:
        raise BadRequest(f"{key} cannot be {value[:80]!r}: it is {', '.join(VALUES[key])}")


def effective(table: Table, path: str, key: str, *, default: str) -> Effective:
    """What holds at a path, and where it comes from."""
    while True:
        own = table.get(path)
        if own is not None and key in own:
            return Effective(own[key], path)
        if path == "/":
            return Effective(default, "")
        path = path[: path.rfind("/")] or "/"
