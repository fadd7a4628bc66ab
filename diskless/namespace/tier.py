"""What the namespace knows of the durable tier: how far it reaches, and where files lie in it.

Changes of what the tier keeps (the tree, snapshots, policies, tokens) are counted while one is
attached: `change` is the number of the last. Several commands may share a place in the log, so
only this number says exactly what a manifest holds. The horizon is the newest change that is
safe there. The bytes of a file are its `Kept`, forgotten when the file is let go of; a *cold*
file has its bytes there alone. No step is proportional to what there is.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from diskless import policy
from diskless.errors import BadRequest
from diskless.model import FileRecord, TierOptions
from diskless.namespace import commands as c
from diskless.namespace.paged import Paged
from diskless.namespace.weights import segment_bytes

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

KEEP_ROWS_MAX = 2000
"""Of one command: it takes up to ten milliseconds."""
FORGET_PLACES = 4000
"""Places that one command of a detachment forgets."""

_OFFSET_BITS, _STORED_BITS, _FLAG_BITS = 40, 40, 8
_STORED_AT = _FLAG_BITS
_OFFSET_AT = _STORED_AT + _STORED_BITS
_SEGMENT_AT = _OFFSET_AT + _OFFSET_BITS
_SEGMENT_BITS = 40
_PACKED_BYTES = (_SEGMENT_AT + _SEGMENT_BITS) // 8


class Kept(Struct, frozen=True, array_like=True, gc=False):
    """Where the bytes of a file lie in the tier."""

    segment: int
    offset: int
    stored_bytes: int
    flags: int


class Segment(Struct, array_like=True, gc=False):
    """An object of the tier that has bytes of files; it is forgotten with the last of them."""

    name: str
    bytes: int
    live_bytes: int = 0


def is_cold(record: FileRecord) -> bool:
    return record.inline is None and not record.extents


class Tier:
    def __init__(self) -> None:
        self.attached = False
        self.uri = ""  # without credentials
        self.options = TierOptions()
        self.epoch = 0
        self.number = 0
        """Of the last manifest."""
        self.change = 0
        self.horizon_change = 0
        self.horizon_op = 0
        """All that was done up to there is within the horizon, to its last command."""
        self.horizon_time_ms = 0
        self.horizon_file = 0
        self.last_segment = 0
        self.segments: Paged[Segment] = Paged()
        self.places: Paged[int] = Paged()  # packed: there is one for nearly every file
        self.cold: Paged[int] = Paged()  # sizes
        self.cold_bytes = 0
        self.live_bytes = 0
        self.segments_bytes_used = 0  # what their table takes

    # -- looking ------------------------------------------------------------------

    @property
    def default_durability(self) -> str:
        if not self.attached:
            return policy.MEMORY
        return self.options.durability or policy.ASYNC

    def place(self, id_: int) -> Kept | None:
        packed = self.places.get(id_)
        return None if packed is None else _unpack(packed)

    def packed(self, id_: int) -> bytes:
        """A place as state transfer sends it: too wide for a number on the wire."""
        return self.places[id_].to_bytes(_PACKED_BYTES, "big")

    def newest_cold(self, *, below: int, limit: int) -> list[int]:
        """Cold files with ids under `below`, the newest first."""
        return self.cold.descending(below=below, limit=limit)

    # -- changing -----------------------------------------------------------------

    def attach(self, uri: str, *, epoch: int, number: int, options: TierOptions) -> None:
        """Its first round is whole: the change makes a gap before the next one."""
        self.attached = True
        self.uri, self.epoch, self.number, self.options = uri, epoch, number, options
        self.change += 1
        self.horizon_change = self.horizon_op = self.horizon_time_ms = self.horizon_file = 0

    def add_segment(self, number: int, name: str, size: int) -> None:
        """To be told before what is kept there; it may have been forgotten meanwhile."""
        if number not in self.segments:
            self.segments[number] = Segment(name, size)
            self.segments_bytes_used += segment_bytes(name)
        self.last_segment = max(self.last_segment, number)

    def keep(self, id_: int, kept: Kept) -> None:
        """The bytes of a file lie there from now on, wherever they lay before."""
        self.segments[kept.segment].live_bytes += kept.stored_bytes
        self.live_bytes += kept.stored_bytes
        self.forget(id_)
        self.places[id_] = _pack(kept)

    def forget(self, id_: int) -> None:
        packed = self.places.get(id_)
        if packed is None:
            return
        del self.places[id_]
        kept = _unpack(packed)
        segment = self.segments[kept.segment]
        segment.live_bytes -= kept.stored_bytes
        self.live_bytes -= kept.stored_bytes
        if not segment.live_bytes:
            self._drop(kept.segment)

    def restore_segment(self, number: int, segment: Segment) -> None:
        self.segments[number] = segment
        self.segments_bytes_used += segment_bytes(segment.name)

    def restore_place(self, id_: int, packed: bytes) -> None:
        self.places[id_] = int.from_bytes(packed, "big")

    def chill(self, record: FileRecord) -> None:
        """A file has no bytes here."""
        self.cold[record.id] = record.size
        self.cold_bytes += record.size

    def warm(self, id_: int) -> None:
        """It has them again, or is gone."""
        size = self.cold.get(id_)
        if size is not None:
            del self.cold[id_]
            self.cold_bytes -= size

    def forget_some(self) -> int:
        """Forgets places, a bounded number; how many are left."""
        for id_ in self.places.ascending(after=-1, limit=FORGET_PLACES):
            self.forget(id_)
        return len(self.places)

    def _drop(self, number: int) -> None:
        self.segments_bytes_used -= segment_bytes(self.segments.pop(number).name)


def _fits(kept: Kept) -> bool:
    """Whether it can be packed."""
    flags, size, at, segment = kept.flags, kept.stored_bytes, kept.offset, kept.segment
    wide = flags >> _FLAG_BITS or size >> _STORED_BITS
    return not (wide or size == 0 or at >> _OFFSET_BITS or segment >> _SEGMENT_BITS)


def _pack(kept: Kept) -> int:
    low = kept.stored_bytes << _STORED_AT | kept.flags
    return kept.segment << _SEGMENT_AT | kept.offset << _OFFSET_AT | low


def _unpack(packed: int) -> Kept:
    stored_bytes = packed >> _STORED_AT & (1 << _STORED_BITS) - 1
    offset = packed >> _OFFSET_AT & (1 << _OFFSET_BITS) - 1
    return Kept(packed >> _SEGMENT_AT, offset, stored_bytes, packed & (1 << _FLAG_BITS) - 1)


# -- commands -----------------------------------------------------------------------


def run(state: "NamespaceState", command: c.Tiering) -> c.Done:
    match command:
        case c.AttachTier():
            return attach(state, command)
        case c.DetachTier():
            return detach(state)
        case c.Keep():
            return keep(state, command)
        case c.Horizon():
            return move_horizon(state, command)


def attach(state: "NamespaceState", command: c.AttachTier) -> c.Done:
    tier = state.tier
    if tier.attached and command.uri != tier.uri:
        raise BadRequest(f"the tier {tier.uri} is attached: detach it first")
    if tier.attached and command.epoch == tier.epoch and command.number <= tier.number:
        return c.Done(changed=False)
    tier.attach(command.uri, epoch=command.epoch, number=command.number, options=command.options)
    if state.journal is not None:
        state.journal.restart(tier.change)
    return c.Done()


def detach(state: "NamespaceState") -> c.Done:
    tier = state.tier
    if tier.cold:
        raise BadRequest(
            f"{len(tier.cold)} files have their bytes in {tier.uri} alone: wait until they are "
            "back in memory, or delete them"
        )
    if path := state.policies.first_with(policy.DURABILITY, policy.SYNC):
        raise BadRequest(f"{path} asks for durability=sync: change that first")
    if not tier.attached:
        return c.Done(changed=False)
    left = tier.forget_some()
    if not left:
        change, last_segment = tier.change, tier.last_segment
        state.tier = Tier()
        state.tier.change, state.tier.last_segment = change, last_segment
        if state.journal is not None:
            state.journal.restart(change)
    return c.Done(left)


def keep(state: "NamespaceState", command: c.Keep) -> c.Done:
    """Of files that are gone meanwhile nothing is kept."""
    tier = state.tier
    if not tier.attached or len(command.rows) > KEEP_ROWS_MAX:
        raise BadRequest(f"{len(command.rows)} places of files, with no tier or too many at once")
    named = {number: (name, size) for number, name, size in command.segments}
    rows = [(id_, Kept(*rest)) for id_, *rest in command.rows]
    for id_, kept in rows:
        if kept.segment not in named or not _fits(kept):
            raise BadRequest(f"file {id_}: no such place in the tier: {kept}")
    count = 0
    for id_, kept in rows:
        if id_ in state.files:
            tier.add_segment(kept.segment, *named[kept.segment])
            tier.keep(id_, kept)
            count += 1
    tier.last_segment = max(tier.last_segment, *named, 0)
    return c.Done(count, changed=count > 0)


def move_horizon(state: "NamespaceState", command: c.Horizon) -> c.Done:
    """Never back: what a leader says that does not lead any more changes nothing."""
    tier = state.tier
    stale = (command.epoch, command.number) <= (tier.epoch, tier.number)
    known = tier.horizon_change <= command.change <= tier.change
    if not tier.attached or stale or not known:
        return c.Done(changed=False)
    tier.epoch, tier.number = command.epoch, command.number
    tier.horizon_change = command.change
    tier.horizon_op = command.op
    tier.horizon_time_ms = command.time_ms
    tier.horizon_file = command.last_file
    if state.journal is not None:
        state.journal.trim(command.change)
    return c.Done()
