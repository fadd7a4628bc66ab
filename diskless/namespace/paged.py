"""A table with growing numbers as keys that never copies itself as it grows.

A plain dictionary of 700,000 entries takes 28 ms to make room for one more, and whoever
waits for the event loop waits as long. This is a dictionary of small ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar, overload

PAGE_BITS = 12

T = TypeVar("T")
D = TypeVar("D")


class Paged(MutableMapping[int, T]):
    """In the order of insertion, if keys are inserted in their own order."""

    __slots__ = ("_pages", "_size")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, T]] = {}
        self._size = 0

    def __getitem__(self, key: int) -> T:
        return self._pages[key >> PAGE_BITS][key]

    @overload
    def get(self, key: int, /) -> T | None: ...
    @overload
    def get(self, key: int, /, default: T | D) -> T | D: ...
    def get(self, key: int, /, default: Any = None) -> Any:
        """Without an exception for a key that is not there, which costs more than all else."""
        page = self._pages.get(key >> PAGE_BITS)
        return default if page is None else page.get(key, default)

    def __setitem__(self, key: int, value: T) -> None:
        page = self._pages.get(key >> PAGE_BITS)
        if page is None:
            page = self._pages[key >> PAGE_BITS] = {}
        if key not in page:
            self._size += 1
        page[key] = value

    def __delitem__(self, key: int) -> None:
        page = self._pages[key >> PAGE_BITS]
        del page[key]
        self._size -= 1
        if not page:
            del self._pages[key >> PAGE_BITS]

    def __iter__(self) -> Iterator[int]:
        for page in self._pages.values():
            yield from page

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, int)
        return key in self._pages.get(key >> PAGE_BITS, ())

    def ascending(self, *, after: int, limit: int) -> list[int]:
        """The next keys beyond `after`."""
        found: list[int] = []
        for number in sorted(n for n in self._pages if n >= after >> PAGE_BITS):
            keys = sorted(self._pages[number])
            found += keys[bisect_right(keys, after) :]
            if len(found) >= limit:
                break
        return found[:limit]

    def descending(self, *, below: int, limit: int) -> list[int]:
        """The next keys under `below`, the greatest first."""
        found: list[int] = []
        for number in sorted((n for n in self._pages if n <= below >> PAGE_BITS), reverse=True):
            keys = sorted(self._pages[number])
            found += reversed(keys[: bisect_left(keys, below)])
            if len(found) >= limit:
                break
        return found[:limit]
