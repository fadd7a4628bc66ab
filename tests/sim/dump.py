"""A canonical picture of any object: equal pictures mean equal states, order included.

What several point to is shown where it is met first, and by its number elsewhere: a state that
shares something and one that has it twice look different.
"""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from diskless.namespace.btree import Inner, Leaf
from diskless.namespace.tree import Directory, File

DERIVED = {"health", "partly_dead", "number", "group", "bucket", "_last_number",
           "_by_path", "_cuts", "uneven", "shape", "_by_expiry", "_revoked",
           "watcher", "journal", "committed", "_held", "lapses"}  # fmt: skip
"""What follows from the rest, in an order that depends on how it came about; and what each voter
has written down for itself."""
COUNTED = (File, Directory, Leaf, Inner)

_Known = dict[int, int]
"""Identities of what has been shown, and their numbers."""


def dump(thing: Any) -> Any:
    return _dump(thing, {})


def _dump(thing: Any, known: _Known) -> Any:
    if isinstance(thing, int | str | bytes | bool | None):
        return thing
    if isinstance(thing, COUNTED):
        number = known.get(id(thing))
        if number is not None:
            return "again", number
        known[id(thing)] = len(known)
    if isinstance(thing, Leaf):  # whose order means nothing
        entries = sorted(thing.entries.items())
        return thing.refs, [(name, _dump(node, known)) for name, node in entries]
    if isinstance(thing, msgspec.Struct):
        if type(thing).__struct_config__.frozen:
            return thing
        return _parts(thing, type(thing).__struct_fields__, known)
    if isinstance(thing, Mapping):
        return [(_dump(key, known), _dump(value, known)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | array):
        return [_dump(item, known) for item in thing]
    if isinstance(thing, set):
        return sorted(thing)
    return _parts(thing, getattr(type(thing), "__slots__", None) or vars(thing), known)


def _parts(thing: Any, names: Iterable[str], known: _Known) -> list[Any]:
    shown = sorted(set(names) - DERIVED)
    return [type(thing).__name__, *((name, _dump(getattr(thing, name), known)) for name in shown)]
