"""What manifests say, and the names of the tier's objects.

A manifest names a whole prefix of the log: by itself if it is whole, else together with those
that it follows (`previous`, back to the whole one). Its number is its place in the chain, which
decides; `previous` is what its content builds on: the number before, except after a return to
the past. Streams (picture, journal, tables, ledger) are parts like those of files.
"""

from enum import IntEnum

from msgspec import Struct
from typing_extensions import Buffer

from diskless.identity.cipher import Cipher
from diskless.tier import form
from diskless.tier.form import Place

CHAIN = "chain/"
SEGMENTS = "segments/"
FLOORS = "floors/"
TABLE_ROWS_MAX = 5000


class Stream(IntEnum):
    PICTURE = 1
    """Chunks of a whole picture of the namespace, of a whole manifest only."""
    JOURNAL = 2
    """Chunks of what was done since the manifest before."""
    TABLE = 3
    """FileRows, up to TABLE_ROWS_MAX in each part."""
    LEDGER = 4
    """What is known of the chain's past, of a whole manifest only: see `collect`."""


class Part(Struct, frozen=True, array_like=True):
    """A piece of a stream, in one of the manifest's own segments."""

    segment: int
    offset: int
    stored_bytes: int
    flags: int
    size: int


class SegmentRow(Struct, frozen=True, array_like=True):
    """An object with parts, by its number: objects are numbered once and for all."""

    number: int
    name: str
    bytes: int


class FileRow(Struct, frozen=True, array_like=True):
    """Where the bytes of file `id` lie, from this manifest on; of a large one those of one part.
    The rows of a file follow each other, in one piece of the table, in the order of its bytes."""

    id: int
    segment: int
    offset: int
    stored_bytes: int
    flags: int
    start: int = 0
    size: int = 0
    """As of Place."""

    @property
    def place(self) -> Place:
        return Place(
            self.segment, self.offset, self.stored_bytes, self.flags, self.start, self.size
        )


class Point(Struct, frozen=True, array_like=True):
    """A manifest that one can return to."""

    number: int
    op: int
    time_ms: int


class Manifest(Struct, frozen=True, kw_only=True):
    cluster: str
    name: str
    """The cluster's name, for people."""
    epoch: int
    number: int
    round_id: str
    """Drawn at random: by it an appender knows its own."""
    op: int
    time_ms: int
    last_file: int
    previous: int = 0
    previous_id: str = ""
    """The round of the manifest that this one builds on."""
    previous_op: int = 0
    whole: bool = False
    base: int = 0
    """The whole manifest that it builds on in the end; its own number if it is whole."""
    takes_over: bool = False
    takeovers: tuple[int, ...] = ()
    """The numbers at which an epoch began, its own too: they are kept forever."""
    own: int = 0
    """The number of its body as a segment."""
    own_bytes: int = 0
    last_segment: int = 0
    segments: tuple[SegmentRow, ...] = ()
    """New ones, or all that are needed, of a whole manifest. Not its own body."""
    dropped: tuple[int, ...] = ()
    """Segments that nothing lies in any more from this manifest on."""
    picture: tuple[Part, ...] = ()
    journal: tuple[Part, ...] = ()
    tables: tuple[Part, ...] = ()
    ledger: tuple[Part, ...] = ()
    points: tuple[Point, ...] | None = None
    """All that one can return to before this one; None adds the manifest before to what that one
    says. A whole manifest should say it, so that nobody has to look further back."""
    doomed: tuple[str, ...] = ()
    """Objects that will be deleted once this manifest is there."""

    @property
    def object_name(self) -> str:
        return chain_name(self.number)

    @property
    def rows(self) -> tuple[SegmentRow, ...]:
        """Its segments, with its own body if files' bytes may lie there."""
        if not self.own:
            return self.segments
        return (*self.segments, SegmentRow(self.own, self.object_name, self.own_bytes))

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The objects in which pieces of its streams lie, but for its own."""
        parts = (*self.picture, *self.journal, *self.tables, *self.ledger)
        numbers = {part.segment for part in parts}
        return tuple(row.name for row in self.segments if row.number in numbers)

    @property
    def point(self) -> Point:
        return Point(self.number, self.op, self.time_ms)


def chain_name(number: int) -> str:
    return f"{CHAIN}{number:012d}"


def floor_name(index: int) -> str:
    return f"{FLOORS}{index:06d}"


def segment_name(intent: int, round_id: str, number: int) -> str:
    """`intent` is the number of the manifest that is to name it, and no other ever will."""
    return f"{SEGMENTS}{intent:012d}-{round_id}-{number}"


def intent_of(name: str) -> int | None:
    """The number of the manifest that a segment was made for; None if it is no segment."""
    digits = name.removeprefix(SEGMENTS).partition("-")[0]
    return int(digits) if name.startswith(SEGMENTS) and digits.isdecimal() else None


def number_of(name: str) -> int | None:
    """A manifest's number by its object's name; None if it is no manifest."""
    digits = name.removeprefix(CHAIN)
    return int(digits) if name.startswith(CHAIN) and digits.isdecimal() else None


def stream_key(stream: Stream, index: int) -> int:
    """A part's key; those of files are their ids, which never come near."""
    return 1 << 63 | stream << 48 | index


def decode(data: Buffer, number: int, cipher: Cipher | None = None) -> Manifest:
    """The manifest of that number. Raises DamagedTier, WrongKey."""
    name = chain_name(number)
    manifest = form.open_object(data, form.MANIFEST, Manifest, name=name, cipher=cipher)
    if manifest.number != number:
        raise form.damaged(name, f"it is manifest {manifest.number}")
    return manifest
