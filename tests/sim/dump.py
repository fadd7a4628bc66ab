"""A canonical picture of any object: equal pictures mean equal states, order included."""

from array import array
from typing import Any

import msgspec

SKIPPED = {"_names", "parent"}  # a cache, and a link back up


def dump(thing: Any) -> Any:
    if isinstance(thing, int | str | bytes | bool | None | msgspec.Struct):
        return thing
    if isinstance(thing, dict):
        return [(dump(key), dump(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | array):
        return [dump(item) for item in thing]
    if isinstance(thing, set):
        return sorted(thing)
    names = getattr(type(thing), "__slots__", None) or vars(thing)
    return [
        type(thing).__name__,
        *((name, dump(getattr(thing, name))) for name in sorted(names) if name not in SKIPPED),
    ]
