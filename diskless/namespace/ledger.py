"""The ledger of stripes: which exist, which files lie in them, which may be dropped.

A stripe is *live* while a file has an extent in it; then *freed*, readable still by
those who opened such a file; then reaped and forgotten. It is defined together with
its first file, never without one. Invariants: a live entry's `live_bytes` is the
sum of the extents of `files` in it, and is positive; `health` and `partly_dead` know
exactly the live stripes, and those of them that are partly dead.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from diskless.errors import NotFound, UploadLost
from diskless.model import PRIORITY_DEFAULT, Extent, HeldShard, Place, Stripe, StripeId
from diskless.namespace.health import Health
from diskless.namespace.sparse import NOWHERE, Sparse, bucket_of


class Verdict(Enum):
    """What the holder of a shard should do with it."""

    KEEP = "keep"
    DROP = "drop"
    UNDECIDED = "undecided"
    """Nothing names its stripe, but a command that is under way may still do so."""
    UNCLAIMED = "unclaimed"
    """Its stripe is known and lies elsewhere, but a move that is under way may still name it."""


class Entry(Struct, eq=False, gc=False):
    """A stripe and what lives of it. Part of no cycle, so that the collector of cycles need
    not look at each: it would stop everything else for as long."""

    stripe: Stripe
    number: int
    """Of two entries the later one has the greater."""
    live_bytes: int = 0
    files: dict[int, int] = field(default_factory=dict)
    """The live bytes of each file here, by its id."""
    group: int = 0
    """Where `Health` has it, while it is live."""
    bucket: int = NOWHERE
    """Where `Sparse` has it."""
    priority: int = PRIORITY_DEFAULT


class Ledger:
    def __init__(self, health: Health) -> None:
        self.health = health
        self.entries: dict[str, Entry] = {}
        self.freed_ms: dict[str, int] = {}  # by elapsed time, in order of freeing
        self.doubted_ms: dict[tuple[int, int], int] = {}  # writers to be fenced, since when
        self.fences: dict[tuple[int, int], int] = {}
        self.reaped: dict[tuple[int, int], set[int]] = {}  # by writer, above its fence
        self.partly_dead = Sparse()  # live, but not all of their bytes are
        self.uneven: dict[str, Entry] = {}  # whose place in it may be another by now
        self.places = 0  # shards of all stripes, freed ones too
        self.live_bytes = 0
        self.payload_bytes = 0  # of stripes that are not freed
        self.stored_bytes = 0  # shards of all stripes, freed ones too
        self.freed_bytes = 0  # shards of those that are freed
        self._last_number = 0

    def check_new(self, stripe: Stripe) -> None:
        """Raises UploadLost if this stripe can no longer be defined, BadRequest for no id."""
        if self._is_over(stripe.id):
            raise UploadLost(f"stripe {stripe.id} was given up as unfinished: write it again")

    def define(self, stripe: Stripe, priority: int = PRIORITY_DEFAULT) -> None:
        """Adds a stripe; `add` must follow. Defining it again changes nothing, but that it has
        the highest priority of all files that came to lie in it."""
        if stripe.id not in self.entries:
            self._enter(self._new_entry(stripe, priority))
            self.payload_bytes += stripe.payload_bytes
            self.stored_bytes += stored_bytes(stripe)
        else:
            self.prefer(stripe.id, priority)

    def prefer(self, id_: str, priority: int) -> None:
        """A stripe has at least this priority from now on."""
        entry = self.entries[id_]
        if priority <= entry.priority:
            return
        if id_ in self.freed_ms:
            entry.priority = priority
        else:
            self._leave(entry)
            entry.priority = priority
            self._enter(entry)

    def restore(
        self,
        stripe: Stripe,
        live_bytes: int,
        files: Iterable[tuple[int, int]] = (),
        priority: int = PRIORITY_DEFAULT,
    ) -> None:
        """Adds the next stripe of a snapshot; its sums come with the snapshot's."""
        entry = self._new_entry(stripe, priority)
        entry.live_bytes = live_bytes
        entry.files.update(files)
        if live_bytes:
            self._enter(entry)
            self._note_dead_bytes(entry)

    def _new_entry(self, stripe: Stripe, priority: int) -> Entry:
        self._last_number += 1
        entry = self.entries[stripe.id] = Entry(stripe, self._last_number, priority=priority)
        self.places += len(stripe.places)
        return entry

    def _enter(self, entry: Entry) -> None:
        """Tells the indices of a live stripe; `_leave` undoes it."""
        entry.group = self.health.enter(entry.stripe, entry.number, entry.priority)
        self.partly_dead.add(entry.bucket, entry.group, entry.stripe.id)

    def _leave(self, entry: Entry) -> None:
        self.partly_dead.remove(entry.bucket, entry.group, entry.stripe.id)
        self.health.leave(entry.group, entry.stripe, entry.number)

    def add(self, file: int, extents: Iterable[Extent]) -> None:
        for extent in extents:
            entry = self.entries[extent.stripe]
            if self.freed_ms.pop(extent.stripe, None) is not None:
                # An earlier put of the same command used it and has been replaced.
                self.payload_bytes += entry.stripe.payload_bytes
                self.freed_bytes -= stored_bytes(entry.stripe)
                self._enter(entry)
            entry.files[file] = entry.files.get(file, 0) + extent.length
            entry.live_bytes += extent.length
            self.live_bytes += extent.length
            self.uneven[extent.stripe] = entry

    def release(self, file: int, extents: Iterable[Extent], *, elapsed_ms: int) -> None:
        for extent in extents:
            entry = self.entries[extent.stripe]
            entry.live_bytes -= extent.length
            self.live_bytes -= extent.length
            entry.files[file] -= extent.length
            if entry.files[file] == 0:
                del entry.files[file]
            assert entry.live_bytes >= 0
            if entry.live_bytes == 0:
                self._free(extent.stripe, elapsed_ms=elapsed_ms)
            else:
                self.uneven[extent.stripe] = entry

    def settle(self) -> None:
        """Brings `partly_dead` up to date, once for all that a command did to a stripe."""
        uneven, self.uneven = self.uneven, {}
        for entry in uneven.values():
            self._note_dead_bytes(entry)

    def _note_dead_bytes(self, entry: Entry) -> None:
        """Dead bytes come from files that went, and from puts that were refused. A stripe that
        is freed by now is nowhere already, and stays there."""
        bucket = bucket_of(live_bytes=entry.live_bytes, payload_bytes=entry.stripe.payload_bytes)
        if bucket != entry.bucket:
            self.partly_dead.remove(entry.bucket, entry.group, entry.stripe.id)
            self.partly_dead.add(bucket, entry.group, entry.stripe.id)
            entry.bucket = bucket

    def _free(self, id_: str, *, elapsed_ms: int) -> None:
        entry = self.entries[id_]
        self.freed_ms[id_] = elapsed_ms
        self._leave(entry)
        entry.bucket = NOWHERE
        self.payload_bytes -= entry.stripe.payload_bytes
        self.freed_bytes += stored_bytes(entry.stripe)

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
            self.freed_bytes -= stored_bytes(stripe)
            who = StripeId.parse(id_)
            if not self._is_over(id_):
                self.reaped.setdefault((who.slot, who.incarnation), set()).add(who.counter)

    def doubt(self, writers: Iterable[tuple[int, int]], *, elapsed_ms: int) -> None:
        for writer in writers:
            self.doubted_ms.setdefault(writer, elapsed_ms)

    def fence(self, slot: int, incarnation: int, below: int) -> None:
        writer = (slot, incarnation)
        self.doubted_ms.pop(writer, None)
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
        after = replace(entry.stripe, places=tuple(moved), version=entry.stripe.version + 1)
        if id_ in self.freed_ms:
            entry.stripe = after
        else:
            self._leave(entry)
            entry.stripe = after
            self._enter(entry)

    def live(self, id_: str) -> Entry | None:
        """A stripe that files lie in."""
        return None if id_ in self.freed_ms else self.entries.get(id_)

    def live_among(self, stripes: Iterable[str]) -> Iterator[Entry]:
        """Those of the stripes that files lie in, each once."""
        for id_ in set(stripes):
            entry = self.live(id_)
            if entry is not None:
                yield entry

    def get(self, id_: str) -> Stripe:
        entry = self.entries.get(id_)
        if entry is None:
            raise self.gone(id_)
        return entry.stripe

    @staticmethod
    def gone(id_: str) -> NotFound:
        return NotFound(f"stripe {id_}: its bytes were deleted or replaced and have been freed")

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
    return stripe.shard_bytes * (stripe.data_shards + stripe.parity_shards)
