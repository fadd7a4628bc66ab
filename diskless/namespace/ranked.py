"""A table with growing numbers as keys, each of one of a few ranks: `Paged`, by rank.

One that is not told another rank has that of paths that ask for nothing.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

from diskless.model import PRIORITIES, PRIORITY_DEFAULT
from diskless.namespace.paged import Paged


class Ranked(MutableMapping[int, int]):
    __slots__ = ("_ranks",)

    def __init__(self) -> None:
        self._ranks: list[Paged[int]] = [Paged() for _ in PRIORITIES]

    def add(self, key: int, value: int, rank: int) -> None:
        """A key that is not there yet."""
        self._ranks[rank][key] = value

    def __getitem__(self, key: int) -> int:
        return self._holder(key)[key]

    def get(self, key: int, default: Any = None) -> Any:
        """Without an exception for a key that is not there, which costs more than all else."""
        return self._holder(key).get(key, default)

    def __setitem__(self, key: int, value: int) -> None:
        self._holder(key)[key] = value

    def __delitem__(self, key: int) -> None:
        del self._holder(key)[key]

    def __contains__(self, key: object) -> bool:
        return any(len(ranked) and key in ranked for ranked in self._ranks)

    def __iter__(self) -> Iterator[int]:
        for ranked in self._ranks:
            yield from ranked

    def __len__(self) -> int:
        return sum(map(len, self._ranks))

    def descending(self, *, rank: int, below: int, limit: int) -> list[int]:
        """The next keys of a rank under `below`, the greatest first."""
        return self._ranks[rank].descending(below=below, limit=limit)

    def _holder(self, key: int) -> Paged[int]:
        """The part that has a key; for one that none has, that of the usual rank."""
        for ranked in self._ranks:
            if len(ranked) and key in ranked:
                return ranked
        return self._ranks[PRIORITY_DEFAULT]
