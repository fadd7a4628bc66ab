"""The commands of the namespace's log, and their results.

A command is immutable data; `NamespaceState.apply` gives it its meaning. Commands
from clients carry (session, sequence), so that a repeat is answered and not run.
`encode` and `decode` are their form on the wire and in the log.
"""

import msgspec
from msgspec import Struct

from diskless.errors import DisklessError, error_from_wire
from diskless.model import DrillStatus, Extent, Place, Stripe, TierOptions


class _Command(Struct, frozen=True, tag=True, array_like=True):
    pass


class NewFile(Struct, frozen=True, array_like=True):
    """A file to be: its bytes are in `inline`, or where `extents` say."""

    path: str
    size: int
    checksum: int
    inline: bytes | None
    extents: tuple[Extent, ...] = ()


class Put(Struct, frozen=True, array_like=True):
    """Files of one client request: all become visible, or none."""

    session: int
    sequence: int
    overwrite: bool
    files: tuple[NewFile, ...]
    parents: bool = True
    """Whether directories above a file are made as needed; else they must be there."""


class Commit(_Command, frozen=True, tag=True, array_like=True):
    """One flush of a writer: the stripes it stored, and every put that lies in them.

    Each put succeeds or fails for itself. All puts that use a stripe are in the
    command that defines it; a stripe that no successful put uses stays unknown.
    """

    stripes: tuple[Stripe, ...]
    puts: tuple[Put, ...]


class OpenSession(_Command, frozen=True, tag=True, array_like=True):
    """Begins a client's numbered row of mutations; the answer is its session."""

    who: str = ""
    """The principal whose it is."""
    application: str = ""
    """Whose leases it shares; empty: it has no part in them."""


class Mkdirs(_Command, frozen=True, tag=True, array_like=True):
    session: int
    sequence: int
    path: str
    parents: bool = True
    """Whether directories above it are made as needed; else they must be there."""


class Rename(_Command, frozen=True, tag=True, array_like=True):
    session: int
    sequence: int
    source: str
    target: str
    overwrite: bool


class Delete(_Command, frozen=True, tag=True, array_like=True):
    session: int
    sequence: int
    path: str
    recursive: bool
    snapshots: bool = False
    """Whether the snapshots at and below the path go too; else they keep it from going."""


class CreateSnapshot(_Command, frozen=True, tag=True, array_like=True):
    """Keeps a directory as it is, under a name; the state makes one if there is none. With
    `cut`, all these directories, none within another, under one name: one moment for all.

    The answer's `number` is that of the first snapshot; the others follow.
    """

    session: int
    sequence: int
    paths: tuple[str, ...]
    name: str
    cut: bool = False


class RenameSnapshot(_Command, frozen=True, tag=True, array_like=True):
    session: int
    sequence: int
    path: str
    old: str
    new: str


class DeleteSnapshots(_Command, frozen=True, tag=True, array_like=True):
    """All of these, or none; the answer's `number` says how many."""

    session: int
    sequence: int
    path: str
    names: tuple[str, ...]


class Clone(_Command, frozen=True, tag=True, array_like=True):
    """The same files at a second path, which go their own way from then on."""

    session: int
    sequence: int
    source: str
    target: str


class Rollback(_Command, frozen=True, tag=True, array_like=True):
    """Makes a directory what its snapshot is; or, with `cut`, all directories of the cut of
    that name, whatever `path` says. What was there becomes a snapshot, or a cut, itself: the
    answer's `number` is its first one's."""

    session: int
    sequence: int
    path: str
    name: str
    cut: bool = False
    guarded: bool = False
    """Whether it is refused while an application has a lease there."""


class Prune(_Command, frozen=True, tag=True, array_like=True):
    """Deletes files below a directory, each by its path from there, and those only that are
    there; the answer's `number` says how many were."""

    session: int
    sequence: int
    path: str
    names: tuple[str, ...]


class Swap(Struct, frozen=True, array_like=True):
    """The directory `path` becomes what the directory `source` is, which is gone then. What was
    there is what its snapshot `since` shows."""

    path: str
    source: str
    since: str


class Replace(_Command, frozen=True, tag=True, array_like=True):
    """All of these swaps, or none: each only if nothing has changed there since its snapshot."""

    session: int
    sequence: int
    swaps: tuple[Swap, ...]
    checked: bool = True
    """False where it was looked at before, and is made again from a journal."""
    force: bool = False
    """Whether a lease of an application does not matter."""


class KeepLeases(_Command, frozen=True, tag=True, array_like=True):
    """The queries of a session's application that write to these checkpoints are alive; those
    that wrote to the ones in `over` have ended."""

    session: int
    sequence: int
    roots: tuple[str, ...]
    over: tuple[str, ...] = ()


class Move(Struct, frozen=True, array_like=True):
    """The same bytes of file `id` are now also at `extents`."""

    id: int
    layout: int
    extents: tuple[Extent, ...]


class Relocate(_Command, frozen=True, tag=True, array_like=True):
    """Puts files' bytes elsewhere, each only if its record is still as it was read.

    Demotion of inline files and repacking of half-dead stripes are both this.
    """

    stripes: tuple[Stripe, ...]
    moves: tuple[Move, ...]


class ShardMove(Struct, frozen=True, array_like=True):
    """Where some shards of a stripe are from now on: (index, place).

    With no places it only makes the stripe's next version, which ends every other move
    that is under way to it.
    """

    stripe: str
    version: int
    places: tuple[tuple[int, Place], ...]


class MoveShards(_Command, frozen=True, tag=True, array_like=True):
    """Repaired stripes: each changes only if it exists and is still of that version.

    The answer's `number` counts those that did. What was stored for the others belongs
    to nothing and is found by the review of shards.
    """

    moves: tuple[ShardMove, ...]


class Drain(_Command, frozen=True, tag=True, array_like=True):
    """From now on the agent gets no new shards and those that it has are moved away;
    or, if `draining` is false, that is over, and an announced end is taken back."""

    slot: int
    draining: bool
    who: str = ""


class Doubt(_Command, frozen=True, tag=True, array_like=True):
    """Unfinished stripes of these writers' lives, (slot, incarnation), which are over, lie
    about: from now on it is counted how long no client has continued them."""

    writers: tuple[tuple[int, int], ...]


class AgentSlow(_Command, frozen=True, tag=True, array_like=True):
    """An agent, in this life, answers much later than the others; or does so no more."""

    slot: int
    incarnation: int
    slow: bool


class AgentEnds(_Command, frozen=True, tag=True, array_like=True):
    """The host of an agent, in this life, is said to end in so long; or, with nothing left, what
    that notice said was wrong. A notice is heard once, whatever has become of it."""

    slot: int
    incarnation: int
    notice: str
    left_ms: int


class Fence(_Command, frozen=True, tag=True, array_like=True):
    """From now on no commit may define a stripe of this writer numbered under `below`."""

    slot: int
    incarnation: int
    below: int


class Reap(_Command, frozen=True, tag=True, array_like=True):
    """Forgets freed stripes, so that their shards may be dropped."""

    stripes: tuple[str, ...]


class Sweep(_Command, frozen=True, tag=True, array_like=True):
    """Takes apart so many entries of what recursive deletes have detached."""

    entries: int


class Limit(_Command, frozen=True, tag=True, array_like=True):
    """From now on the namespace may grow to so many bytes, by its own count. The leader
    says so as the voters' memory fills: all of them refuse what is beyond it alike."""

    bytes_max: int


class IssueToken(_Command, frozen=True, tag=True, array_like=True):
    """Registers a token, without its key: `changed` says whether it was not known. Refused if
    the name is taken by another, or was revoked."""

    name: str
    paths: tuple[str, ...]
    writes: bool
    expires_s: int
    who: str = ""


class RevokeToken(_Command, frozen=True, tag=True, array_like=True):
    """From now on no agent lets the holder of a token in. Never refused, and works for
    names that were never registered: `number` is 1 for those that were."""

    name: str
    who: str = ""


class SetPolicy(_Command, frozen=True, tag=True, array_like=True):
    """From now on a path, and what is below it, asks for this. `changed` says whether it did
    not before. Refused for keys and values that there are not."""

    path: str
    key: str
    value: str
    who: str = ""


class RemovePolicy(_Command, frozen=True, tag=True, array_like=True):
    """Takes a policy off a path, or all that it has if `key` is empty; `number` says how
    many that were."""

    path: str
    key: str
    who: str = ""


class AttachTier(_Command, frozen=True, tag=True, array_like=True):
    """From now on changes are kept in a tier, whose last manifest has this number. Refused
    while another one is attached."""

    uri: str
    epoch: int
    number: int
    who: str = ""
    options: TierOptions = TierOptions()


class DetachTier(_Command, frozen=True, tag=True, array_like=True):
    """Ends the use of the tier, and forgets what lies there, in steps: to be repeated until the
    answer's `number`, of what is left, is 0. Refused while files have their bytes there alone,
    or a path asks for `barrier` or `sync`."""

    who: str = ""


class Close(_Command, frozen=True, tag=True, array_like=True):
    """From now on nothing is changed that the tier keeps, so that it can have all of it; or, if
    `closed` is false, that is over. Refused without a tier."""

    closed: bool
    who: str = ""


class Drilled(_Command, frozen=True, tag=True, array_like=True):
    """What a drill of the tier has found; the last one is remembered. Refused without a tier."""

    result: DrillStatus
    who: str = ""


class Keep(_Command, frozen=True, tag=True, array_like=True):
    """Where bytes of files lie in the tier: rows of (file, segment, offset, stored bytes,
    flags), and all segments that they name: (number, name, bytes). Of a large file there is a row
    for each of its parts, in order, with two numbers more: start and size. The answer's `number`
    says how many of these files are still there."""

    number: int
    """Of the manifest."""
    segments: tuple[tuple[int, str, int], ...]
    rows: tuple[tuple[int, ...], ...]
    uri: str = ""
    """Of the tier: another one may be attached by now."""


class Horizon(_Command, frozen=True, tag=True, array_like=True):
    """All that was done up to `change`, and so up to `op`, is safe in the tier by manifest
    `number`. Of manifests that are not newer than the last nothing is taken."""

    epoch: int
    number: int
    change: int
    op: int
    time_ms: int
    last_file: int
    uri: str = ""
    """As of `Keep`."""


class Evict(_Command, frozen=True, tag=True, array_like=True):
    """Lets go of files' bytes in memory that the tier has: (file, layout), each only if its
    record is still as it was read, and its bytes are there and within the horizon. The answer's
    `number` counts those that were."""

    files: tuple[tuple[int, int], ...]
    returns: bool = False
    """Whether they are to come back by themselves: not evicted for room, but lost here."""


class Mark(_Command, frozen=True, tag=True, array_like=True):
    """Holds this moment, so that it can be walked while the namespace changes. There is one
    mark: a new one takes the place of the last."""


class Unmark(_Command, frozen=True, tag=True, array_like=True):
    """Lets go of the moment that was held; `changed` says whether one was."""


class AgentUp(_Command, frozen=True, tag=True, array_like=True):
    """A process serves a slot. A new `boot` is a new incarnation, with empty memory."""

    slot: int
    boot: str
    address: str
    gateway: str
    socket: str
    host: str
    node: str
    pid: int


class AgentDown(_Command, frozen=True, tag=True, array_like=True):
    slot: int
    incarnation: int


Past = CreateSnapshot | RenameSnapshot | DeleteSnapshots | Clone | Rollback | Prune | Replace
"""What has to do with snapshots, of a client."""

Registry = IssueToken | RevokeToken | SetPolicy | RemovePolicy
"""What has to do with the tables beside the tree."""

Tiering = AttachTier | DetachTier | Close | Drilled | Keep | Horizon | Evict
"""What has to do with the durable tier."""

Command = (
    Commit
    | OpenSession
    | Mkdirs
    | Rename
    | Delete
    | CreateSnapshot
    | RenameSnapshot
    | DeleteSnapshots
    | Clone
    | Rollback
    | Prune
    | Replace
    | KeepLeases
    | Relocate
    | MoveShards
    | Doubt
    | Fence
    | Reap
    | Sweep
    | AgentUp
    | AgentDown
    | AgentSlow
    | AgentEnds
    | Drain
    | Limit
    | IssueToken
    | RevokeToken
    | SetPolicy
    | RemovePolicy
    | AttachTier
    | DetachTier
    | Close
    | Drilled
    | Keep
    | Horizon
    | Evict
    | Mark
    | Unmark
)


class Done(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Success. `number` is a session, an incarnation, the id of a put's first file or
    of a snapshot, or how many of a command's moves or deletions were made."""

    number: int = 0
    time_ms: int = 0
    changed: bool = True


class Refused(Struct, frozen=True, tag=True, array_like=True, gc=False):
    reason: str
    message: str

    @classmethod
    def of(cls, error: DisklessError) -> "Refused":
        return cls(error.reason, str(error))

    def error(self) -> DisklessError:
        return error_from_wire(self.reason, self.message)


Result = Done | Refused

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Command).decode
decode_results = msgspec.msgpack.Decoder(tuple[Result, ...]).decode
