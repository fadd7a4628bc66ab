"""What the namespace knows of the durable tier: how far it reaches, and where files lie in it.

Changes of what the tier keeps (the tree, snapshots, policies, tokens) are counted while one is
attached: `change` is the number of the last. Several commands may share a place in the log, so
only this number says exactly what a manifest holds. The horizon is the newest change that is
safe there. The bytes of a file are its `Kept`, forgotten when the file is let go of. A *cold*
file has its bytes there alone and comes back by itself; an *evicted* one does so too, and comes
back when somebody wants it. Only what is within the horizon is ever let go of here. No step is
proportional to what there is.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from diskless import policy
from diskless.errors import BadRequest, Closing, Unavailable
from diskless.model import PRIORITY_DEFAULT, DrillStatus, FileRecord, TierOptions
from diskless.namespace import commands as c
from diskless.namespace.marked import unmark
from diskless.namespace.paged import Paged
from diskless.namespace.plans import Plans
from diskless.namespace.ranked import Ranked
from diskless.namespace.weights import segment_bytes

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

KEEP_ROWS_MAX = 1400
"""Of one command: it takes up to ten milliseconds."""
DRILL_PROBLEM_CHARS = 500
EVICT_FILES_MAX = 1000
"""Of one command: a few milliseconds."""
FORGET_PLACES = 500
"""Places that one command of a detachment forgets."""

_OFFSET_BITS, _STORED_BITS, _FLAG_BITS = 40, 40, 8
_STORED_AT = _FLAG_BITS
_OFFSET_AT = _STORED_AT + _STORED_BITS
_SEGMENT_AT = _OFFSET_AT + _OFFSET_BITS
_SEGMENT_BITS = 40
_PACKED_BYTES = (_SEGMENT_AT + _SEGMENT_BITS) // 8
_START_BITS = 48
_ROW_NUMBERS = (4, 6)
_PART_BYTES = _PACKED_BYTES + 2 * _START_BITS // 8


class Kept(Struct, frozen=True, array_like=True, gc=False):
    """Where the bytes of a file lie in the tier, or those of one part of it."""

    segment: int
    offset: int
    stored_bytes: int
    flags: int
    start: int = 0
    """The byte of the file that the part begins with."""
    size: int = 0
    """Its bytes; 0 if it is the whole file."""


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
        self.closed = False
        """Whether nothing is changed any more, so that the tier can have all of it."""
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
        self.drill: DrillStatus | None = None
        self.last_segment = 0
        self.segments: Paged[Segment] = Paged()
        self.places: Paged[int | tuple[Kept, ...]] = Paged()
        """Packed, for there is one for nearly every file; all parts of one that has several."""
        self.parts_kept = 0  # of files with several
        self.cold = Ranked()  # sizes
        self.cold_bytes = 0
        self.evicted: Paged[int] = Paged()  # as `cold`: a file is in one of them
        self.evicted_bytes = 0
        self.live_bytes = 0
        self.segments_bytes_used = 0  # what their table takes
        self.plans = Plans()

    # -- looking ------------------------------------------------------------------

    @property
    def default_durability(self) -> str:
        if not self.attached:
            return policy.MEMORY
        return self.options.durability or policy.ASYNC

    def check_open(self) -> None:
        """Raises Closing."""
        if self.closed:
            raise Closing(
                f"the cluster is being ended, and all of it brought to {self.uri}: nothing is "
                "changed any more (`diskless down` ends it, `diskless up` lets it continue)"
            )

    def place(self, id_: int, at: int = 0) -> Kept | None:
        """Where byte `at` of a file lies."""
        found = self.places.get(id_)
        if not isinstance(found, tuple):
            return None if found is None else _unpack(found)
        index = bisect_right(found, at, key=lambda kept: kept.start) - 1
        kept = found[index]
        return kept if kept.start <= at < kept.start + kept.size else None

    def parts(self, id_: int) -> tuple[Kept, ...]:
        """All places of a file, in the order of its bytes."""
        found = self.places.get(id_, ())
        return found if isinstance(found, tuple) else (_unpack(found),)

    def packed(self, id_: int) -> bytes:
        """Places as state transfer sends them: too wide for a number on the wire."""
        found = self.places[id_]
        if not isinstance(found, tuple):
            return found.to_bytes(_PACKED_BYTES, "big")
        return b"".join(_part_to_bytes(kept) for kept in found)

    def is_safe(self, id_: int) -> bool:
        """Whether the bytes of a file are in the tier, and the file within the horizon."""
        return self.attached and id_ <= self.horizon_file and id_ in self.places

    @property
    def only_there(self) -> int:
        """How many files have their bytes there alone."""
        return len(self.cold) + len(self.evicted)

    def newest_cold(self, *, below: int, limit: int, priority: int = PRIORITY_DEFAULT) -> list[int]:
        """Cold files of a priority with ids under `below`, the newest first."""
        return self.cold.descending(rank=priority, below=below, limit=limit)

    # -- changing -----------------------------------------------------------------

    def attach(self, uri: str, *, epoch: int, number: int, options: TierOptions) -> None:
        """Its first round is whole: the change makes a gap before the next one."""
        self.attached = True
        self.uri, self.epoch, self.number, self.options = uri, epoch, number, options
        self.change += 1
        self.horizon_change = self.horizon_op = self.horizon_time_ms = self.horizon_file = 0
        self.plans.raise_floor(self.change)

    def detach(self) -> None:
        """What is known of its files is left to be forgotten."""
        self.attached = self.closed = False
        self.plans = Plans()
        self.uri, self.options = "", TierOptions()
        self.epoch = self.number = 0
        self.horizon_change = self.horizon_op = self.horizon_time_ms = self.horizon_file = 0

    def is_at(self, uri: str) -> bool:
        """Whether that is the tier which is attached."""
        return self.attached and uri in ("", self.uri)

    def add_segment(self, number: int, name: str, size: int) -> None:
        """To be told before what is kept there; it may have been forgotten meanwhile."""
        if number not in self.segments:
            self.segments[number] = Segment(name, size)
            self.segments_bytes_used += segment_bytes(name)
        self.last_segment = max(self.last_segment, number)

    def keep(self, id_: int, *parts: Kept) -> None:
        """All bytes of a file lie there from now on, wherever they lay before."""
        for kept in parts:
            self.segments[kept.segment].live_bytes += kept.stored_bytes
            self.live_bytes += kept.stored_bytes
        self.forget(id_)
        if len(parts) == 1:
            self.places[id_] = _pack(parts[0])
        else:
            self.places[id_] = parts
            self.parts_kept += len(parts)

    def forget(self, id_: int) -> None:
        parts = self.parts(id_)
        if not parts:
            return
        if isinstance(self.places[id_], tuple):
            self.parts_kept -= len(parts)
        del self.places[id_]
        for kept in parts:
            segment = self.segments[kept.segment]
            segment.live_bytes -= kept.stored_bytes
            self.live_bytes -= kept.stored_bytes
            if not segment.live_bytes:
                self._drop(kept.segment)

    def restore_segment(self, number: int, segment: Segment) -> None:
        self.segments[number] = segment
        self.segments_bytes_used += segment_bytes(segment.name)

    def restore_place(self, id_: int, packed: bytes) -> None:
        if len(packed) == _PACKED_BYTES:
            self.places[id_] = int.from_bytes(packed, "big")
            return
        parts = [packed[at : at + _PART_BYTES] for at in range(0, len(packed), _PART_BYTES)]
        self.places[id_] = tuple(map(_part_from_bytes, parts))
        self.parts_kept += len(parts)

    def chill(self, record: FileRecord) -> None:
        """A file has no bytes here."""
        self.cold.add(record.id, record.size, policy.priority_of(record.grade))
        self.cold_bytes += record.size

    def rank(self, record: FileRecord) -> None:
        """A cold file has another priority."""
        self.cold.add(record.id, self.cold.pop(record.id), policy.priority_of(record.grade))

    def set_aside(self, record: FileRecord) -> None:
        """As `chill`, until somebody wants it."""
        self.evicted[record.id] = record.size
        self.evicted_bytes += record.size

    def warm(self, id_: int) -> None:
        """It has them again, or is gone."""
        size = self.cold.get(id_)
        if size is not None:
            del self.cold[id_]
            self.cold_bytes -= size
            return
        size = self.evicted.get(id_)
        if size is not None:
            del self.evicted[id_]
            self.evicted_bytes -= size

    def forget_some(self) -> int:
        """Forgets places, a bounded number; how many are left."""
        for id_ in self.places.ascending(after=-1, limit=FORGET_PLACES):
            self.forget(id_)
        return len(self.places)

    def _drop(self, number: int) -> None:
        self.segments_bytes_used -= segment_bytes(self.segments.pop(number).name)


def row_of(kept: Kept) -> tuple[int, ...]:
    """Its numbers, as a command has them."""
    row = (kept.segment, kept.offset, kept.stored_bytes, kept.flags)
    return (*row, kept.start, kept.size) if kept.size else row


def _fits(kept: Kept) -> bool:
    """Whether it can be packed."""
    flags, size, at, segment = kept.flags, kept.stored_bytes, kept.offset, kept.segment
    wide = flags >> _FLAG_BITS or size >> _STORED_BITS
    wide = wide or kept.start >> _START_BITS or kept.size >> _START_BITS
    return not (wide or size == 0 or at >> _OFFSET_BITS or segment >> _SEGMENT_BITS)


def _pack(kept: Kept) -> int:
    low = kept.stored_bytes << _STORED_AT | kept.flags
    return kept.segment << _SEGMENT_AT | kept.offset << _OFFSET_AT | low


def _unpack(packed: int) -> Kept:
    stored_bytes = packed >> _STORED_AT & (1 << _STORED_BITS) - 1
    offset = packed >> _OFFSET_AT & (1 << _OFFSET_BITS) - 1
    return Kept(packed >> _SEGMENT_AT, offset, stored_bytes, packed & (1 << _FLAG_BITS) - 1)


def _part_to_bytes(kept: Kept) -> bytes:
    which = kept.start << _START_BITS | kept.size
    return _pack(kept).to_bytes(_PACKED_BYTES, "big") + which.to_bytes(2 * _START_BITS // 8, "big")


def _part_from_bytes(packed: bytes) -> Kept:
    kept = _unpack(int.from_bytes(packed[:_PACKED_BYTES], "big"))
    which = int.from_bytes(packed[_PACKED_BYTES:], "big")
    return replace(kept, start=which >> _START_BITS, size=which & (1 << _START_BITS) - 1)


# -- commands -----------------------------------------------------------------------


def run(state: "NamespaceState", command: c.Tiering) -> c.Done:
    match command:
        case c.AttachTier():
            return attach(state, command)
        case c.DetachTier():
            return detach(state)
        case c.Close():
            return close(state, command)
        case c.Drilled(result):
            return note_drill(state, result)
        case c.Keep():
            return keep(state, command)
        case c.Horizon():
            return move_horizon(state, command)
        case c.Evict():
            return evict(state, command)


def attach(state: "NamespaceState", command: c.AttachTier) -> c.Done:
    tier = state.tier
    if tier.attached and command.uri != tier.uri:
        raise BadRequest(f"the tier {tier.uri} is attached: detach it first")
    if not tier.attached and tier.places:
        raise Unavailable("records of the last tier are still being removed: try again")
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
            f"{tier.only_there} files have their bytes in {tier.uri} alone: wait until they are "
            "back in memory, or delete them"
        )
    if tier.evicted:
        raise BadRequest(
            f"{len(tier.evicted)} files have their bytes in {tier.uri} alone, because memory was "
            "full: `diskless policy set / pin=yes` brings them back if there is room by now; "
            "else delete some, or start more agents"
        )
    for value in policy.NEED_A_TIER:
        if path := state.policies.first_with(policy.DURABILITY, value):
            raise BadRequest(f"{path} asks for durability={value}: change that first")
    if not tier.attached and not tier.places:
        return c.Done(changed=False)
    if tier.attached:
        # At once: a tier that continues without the places of some files would not name them.
        tier.detach()
        unmark(state)
        if state.journal is not None:
            state.journal.restart(tier.change)
    left = tier.forget_some()
    return c.Done(left)


def close(state: "NamespaceState", command: c.Close) -> c.Done:
    tier = state.tier
    if not tier.attached:
        raise BadRequest("this cluster has no tier: `diskless up --tier URI` adds one")
    changed, tier.closed = tier.closed != command.closed, command.closed
    return c.Done(tier.change, changed=changed)


def note_drill(state: "NamespaceState", result: DrillStatus) -> c.Done:
    if not state.tier.attached:
        raise BadRequest("this cluster has no tier that could have been drilled")
    problem = result.problem[:DRILL_PROBLEM_CHARS]
    state.tier.drill = replace(result, time_ms=state.clock_ms, problem=problem)
    return c.Done()


def keep(state: "NamespaceState", command: c.Keep) -> c.Done:
    """Of files that are gone meanwhile nothing is kept."""
    tier = state.tier
    if not tier.is_at(command.uri) or len(command.rows) > KEEP_ROWS_MAX:
        raise BadRequest(
            f"{len(command.rows)} places of files, in no tier of this cluster, or too many at once"
        )
    named = {number: (name, size) for number, name, size in command.segments}
    files: dict[int, list[Kept]] = {}
    for id_, *rest in command.rows:
        if len(rest) not in _ROW_NUMBERS:
            raise BadRequest(f"file {id_}: {len(rest)} numbers are no place in the tier")
        kept = Kept(*rest)
        if kept.segment not in named or not _fits(kept):
            raise BadRequest(f"file {id_}: no such place in the tier: {kept}")
        if not kept.start:  # the last that is told of a file counts
            files[id_] = []
        files.setdefault(id_, []).append(kept)
    for id_, parts in files.items():
        check_parts(state, id_, parts)
    count = 0
    for id_, parts in files.items():
        if id_ in state.files:
            for kept in parts:
                tier.add_segment(kept.segment, *named[kept.segment])
            tier.keep(id_, *parts)
            count += 1
    tier.last_segment = max(tier.last_segment, *named, 0)
    return c.Done(count, changed=count > 0)


def check_parts(state: "NamespaceState", id_: int, parts: Sequence[Kept]) -> None:
    """Raises BadRequest unless they are all of a file: what is kept is what may be let go of."""
    if len(parts) == 1 and not parts[0].start and not parts[0].size:
        return
    at = 0
    for kept in parts:
        if kept.start != at or not kept.size:
            raise BadRequest(f"file {id_}: its part at byte {kept.start} follows byte {at}")
        at += kept.size
    file = state.files.get(id_)
    if file is not None and at != file.record.size:
        raise BadRequest(f"file {id_} has {file.record.size} bytes, its parts have {at}")


def move_horizon(state: "NamespaceState", command: c.Horizon) -> c.Done:
    """Never back: what a leader says that does not lead any more changes nothing."""
    tier = state.tier
    stale = (command.epoch, command.number) <= (tier.epoch, tier.number)
    known = tier.horizon_change <= command.change <= tier.change
    if not tier.is_at(command.uri) or stale or not known:
        return c.Done(changed=False)
    tier.epoch, tier.number = command.epoch, command.number
    tier.horizon_change = command.change
    tier.horizon_op = command.op
    tier.horizon_time_ms = command.time_ms
    tier.horizon_file = command.last_file
    tier.plans.trim(command.change)
    if state.journal is not None:
        state.journal.trim(command.change)
    return c.Done()


def evict(state: "NamespaceState", command: c.Evict) -> c.Done:
    """Of a file that the tier has not for certain nothing is let go of, whoever says so."""
    tier = state.tier
    if len(command.files) > EVICT_FILES_MAX:
        raise BadRequest(f"{len(command.files)} files to evict at once: {EVICT_FILES_MAX} may be")
    count = 0
    for id_, layout in command.files:
        file = state.files.get(id_)
        if file is None or file.record.layout != layout or not is_evictable(tier, file.record):
            continue
        old = file.record
        file.record = replace(old, inline=None, extents=(), layout=layout + 1)
        state.let_go([old], moved=True)
        if command.returns:
            tier.chill(file.record)
        else:
            tier.set_aside(file.record)
        count += 1
    return c.Done(count, changed=count > 0)


def is_evictable(tier: Tier, record: FileRecord) -> bool:
    """Whether its bytes are here, and could be read from the tier just as well."""
    return record.size > 0 and not is_cold(record) and tier.is_safe(record.id)
