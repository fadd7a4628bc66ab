"""The stripes that are partly dead, by how much of them lives: what repacking chooses from.

Kept in buckets of the live share, and in these by groups (`health`), so that choosing costs
what is chosen, and what cannot be read is passed over a group at a time. It follows from the
ledger and is not replicated.
"""

from collections.abc import Callable, Iterator

BUCKETS = 32
NOWHERE = -1
"""Where a stripe is that is all alive, or freed."""


def bucket_of(*, live_bytes: int, payload_bytes: int) -> int:
    full = live_bytes >= payload_bytes
    return NOWHERE if full or not live_bytes else BUCKETS * live_bytes // payload_bytes


class Sparse:
    def __init__(self) -> None:
        self._buckets: list[dict[int, dict[str, None]]] = [{} for _ in range(BUCKETS)]

    def add(self, bucket: int, group: int, stripe: str) -> None:
        if bucket != NOWHERE:
            self._buckets[bucket].setdefault(group, {})[stripe] = None

    def remove(self, bucket: int, group: int, stripe: str) -> None:
        if bucket != NOWHERE:
            stripes = self._buckets[bucket][group]
            del stripes[stripe]
            if not stripes:
                del self._buckets[bucket][group]

    def __iter__(self) -> Iterator[str]:
        for _, stripe in self.sparsest(lambda group: True):
            yield stripe

    def sparsest(self, is_readable: Callable[[int], bool]) -> Iterator[tuple[float, str]]:
        """The stripes of readable groups, sparsest first, each with the share that at least
        lives of it: exact to a bucket's width. None must change meanwhile."""
        for number, groups in enumerate(self._buckets):
            for group, stripes in groups.items():
                if is_readable(group):
                    for stripe in stripes:
                        yield number / BUCKETS, stripe
