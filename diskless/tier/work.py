"""Work that takes long enough to be noticed is done beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

ASIDE_BYTES_MIN = 128 * 1024
"""Compressing, sealing or checking this much takes about a millisecond."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def aside(size: int, work: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """`work(*args)`, which handles `size` bytes: in a thread unless it is quick."""
    if size < ASIDE_BYTES_MIN:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
