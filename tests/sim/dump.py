"""A canonical picture of any object: equal pictures mean equal states, order included."""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from diskless.namespace.btree import Leaf

DERIVED = {"health", "partly_dead", "number", "group", "bucket", "_last_number",
           "_by_path", "_cuts"}  # fmt: skip
"""What follows from the rest, in an order that depends on how it came about."""


def dump(thing: Any) -> Any:
    if isinstance(thing, int | str | bytes | bool | None):
        return thing
    if isinstance(thing, Leaf):  # whose order means nothing
        return thing.refs, [(name, dump(node)) for name, node in sorted(thing.entries.items())]
    if isinstance(thing, msgspec.Struct):
        if type(thing).__struct_config__.frozen:
            return thing
        return _parts(thing, type(thing).__struct_fields__)
    if isinstance(thing, Mapping):
        return [(dump(key), dump(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | array):
        return [dump(item) for item in thing]
    if isinstance(thing, set):
        return sorted(thing)
    return _parts(thing, getattr(type(thing), "__slots__", None) or vars(thing))


def _parts(thing: Any, names: Iterable[str]) -> list[Any]:
    shown = sorted(set(names) - DERIVED)
    return [type(thing).__name__, *((name, dump(getattr(thing, name))) for name in shown)]
