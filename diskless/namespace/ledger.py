"""The ledger of stripes: which exist, which files lie in them, which may be dropped.

A stripe is *live* while a file has an extent in it; then *freed*, readable still by
those who opened such a file; then reaped and forgotten. It is defined together with
its first file, never without one. Invariant: a live entry's `live_bytes` is the
sum of the extents of `files` in it, and is positive.
"""

from collections.abc import Iterable
from enum import Enum

from msgspec.structs import replace

from diskless.errors import NotFound, UploadLost
from diskless.model import Extent, HeldShard, Place, Stripe, StripeId


class Verdict(Enum):
    """What the holder of a shard should do with it."""

    KEEP = "keep"
    DROP = "drop"
    UNDECIDED = "undecided"
    """Nothing names its stripe, but a command that is under way may still do so."""
    UNCLAIMED = "unclaimed"
    """Its stripe is known and lies elsewhere, but a move that is under way may still name it."""


class Entry:
    __slots__ = ("files", "live_bytes", "stripe")

    def __init__(self, stripe: Stripe) -> None:
        self.stripe = stripe
        self.live_bytes = 0
        self.files: dict[int, int] = {}  # file id -> its live bytes here


class Ledger:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.freed_ms: dict[str, int] = {}  # in order of freeing
        self.fences: dict[tuple[int, int], int] = {}
        self.reaped: dict[tuple[int, int], set[int]] = {}  # by writer, above its fence
        self.partly_dead: dict[str, None] = {}  # live, but not all of their bytes are
        self.places = 0  # shards of all stripes, freed ones too
        self.live_bytes = 0
        self.payload_bytes = 0  # of stripes that are not freed
        self.stored_bytes = 0  # shards of all stripes, freed ones too
        self.changes = 0  # counts changes of the set of stripes, for caches

    def check_new(self, stripe: Stripe) -> None:
        """Raises UploadLost if this stripe can no longer be defined, BadRequest for no id."""
        if self._is_over(stripe.id):
            raise UploadLost(f"stripe {stripe.id} was given up as unfinished: write it again")

    def define(self, stripe: Stripe) -> None:
        """Adds a stripe; `add` must follow. Defining it again changes nothing."""
        if stripe.id not in self.entries:
            self.entries[stripe.id] = Entry(stripe)
            self.places += len(stripe.places)
            self.payload_bytes += stripe.payload_bytes
            self.stored_bytes += stored_bytes(stripe)
            self.changes += 1

    def add(self, file: int, extents: Iterable[Extent]) -> None:
        for extent in extents:
            entry = self.entries[extent.stripe]
            if self.freed_ms.pop(extent.stripe, None) is not None:
                # An earlier put of the same command used it and has been replaced.
                self.payload_bytes += entry.stripe.payload_bytes
                self.changes += 1
            entry.files[file] = entry.files.get(file, 0) + extent.length
            entry.live_bytes += extent.length
            self.live_bytes += extent.length
            self._note_dead_bytes(entry)

    def release(self, file: int, extents: Iterable[Extent], *, now_ms: int) -> None:
        for extent in extents:
            entry = self.entries[extent.stripe]
            entry.live_bytes -= extent.length
            self.live_bytes -= extent.length
            entry.files[file] -= extent.length
            if entry.files[file] == 0:
                del entry.files[file]
            assert entry.live_bytes >= 0
            if entry.live_bytes == 0:
                self._free(extent.stripe, now_ms=now_ms)
            else:
                self._note_dead_bytes(entry)

    def _note_dead_bytes(self, entry: Entry) -> None:
        """Dead bytes come from files that went, and from puts that were refused."""
        if entry.live_bytes < entry.stripe.payload_bytes:
            self.partly_dead[entry.stripe.id] = None
        else:
            self.partly_dead.pop(entry.stripe.id, None)

    def _free(self, id_: str, *, now_ms: int) -> None:
        self.freed_ms[id_] = now_ms
        self.partly_dead.pop(id_, None)
        self.payload_bytes -= self.entries[id_].stripe.payload_bytes
        self.changes += 1

    def reap(self, stripes: Iterable[str]) -> None:
        """Forgets stripes that are freed; others of the list are left as they are.

        Their numbers are remembered until a fence covers them, so that a belated commit
        cannot define one again when its shards have been dropped.
        """
        for id_ in stripes:
            if self.freed_ms.pop(id_, None) is None:
                continue
            stripe = self.entries.pop(id_).stripe
            self.places -= len(stripe.places)
            self.stored_bytes -= stored_bytes(stripe)
            self.changes += 1
            who = StripeId.parse(id_)
            if not self._is_over(id_):
                self.reaped.setdefault((who.slot, who.incarnation), set()).add(who.counter)

    def fence(self, slot: int, incarnation: int, below: int) -> None:
        writer = (slot, incarnation)
        self.fences[writer] = max(below, self.fences.get(writer, 0))
        above = {n for n in self.reaped.pop(writer, ()) if n >= self.fences[writer]}
        if above:
            self.reaped[writer] = above

    def _is_over(self, id_: str) -> bool:
        """Whether a stripe can no longer be defined: it is fenced, or has been reaped."""
        who = StripeId.parse(id_)
        writer = (who.slot, who.incarnation)
        return who.counter < self.fences.get(writer, 0) or who.counter in self.reaped.get(
            writer, ()
        )

    def move(self, id_: str, places: Iterable[tuple[int, Place]]) -> None:
        """Makes the next version of a stripe, with some of its shards elsewhere."""
        entry = self.entries[id_]
        moved = list(entry.stripe.places)
        for index, place in places:
            moved[index] = place
        entry.stripe = replace(entry.stripe, places=tuple(moved), version=entry.stripe.version + 1)
        self.changes += 1

    def get(self, id_: str) -> Stripe:
        entry = self.entries.get(id_)
        if entry is None:
            raise NotFound(f"stripe {id_}: its bytes were deleted or replaced and have been freed")
        return entry.stripe

    def verdict(self, shard: HeldShard, at: Place) -> Verdict:
        """On a shard that lies at `at`."""
        entry = self.entries.get(shard.stripe)
        if entry is None:
            return Verdict.DROP if self._is_over(shard.stripe) else Verdict.UNDECIDED
        places = entry.stripe.places
        if shard.index < len(places) and places[shard.index] == at:
            return Verdict.KEEP
        # A move that names it makes the version that it was stored for, or never comes.
        return Verdict.DROP if shard.version <= entry.stripe.version else Verdict.UNCLAIMED


def stored_bytes(stripe: Stripe) -> int:
    """Bytes of all the stripe's shards, up to rounding."""
    shard = -(-stripe.payload_bytes // stripe.data_shards)
    return shard * (stripe.data_shards + stripe.parity_shards)
