"""The messages between voters.

Every message carries the cluster's id and the sender's crash vector: the newest
life that the sender knows of every voter, its own among them. `view` is the view that
a message belongs to; a message of another view never changes a log.
"""

import msgspec
from msgspec import Struct

Life = tuple[int, int]
"""One process of a voter's slot: its number, and a nonce that it drew when it began. The
higher of two supersedes the other."""


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One op of the log: the commands of one round, and the log's two clocks for them."""

    time_ms: int
    """Wall time, for people: what most of the voters' clocks say."""
    elapsed_ms: int
    """How long the cluster has had a leader, up to here: what waits are measured by."""
    commands: tuple[bytes, ...]


class _Message(Struct, frozen=True, tag=True, array_like=True, gc=False):
    cluster: str
    vector: tuple[Life, ...]


class Prepare(_Message, frozen=True, tag=1, array_like=True, gc=False):
    """Leader: log `entry` as `op`; everything up to `commit` is committed."""

    view: int
    op: int
    commit: int
    sent_ms: int
    entry: Entry


class PrepareOk(_Message, frozen=True, tag=2, array_like=True, gc=False):
    """My log up to `op` is that of this view. It also promises, from now and for one
    lease, to join no view change; `sent_ms` is what the leader's message said, `wall_ms`
    what this voter's wall clock says."""

    view: int
    op: int
    sent_ms: int
    wall_ms: int


class Heartbeat(_Message, frozen=True, tag=3, array_like=True, gc=False):
    """Leader, regularly. Entries up to `floor` are no longer needed by anybody."""

    view: int
    op: int
    commit: int
    sent_ms: int
    elapsed_ms: int
    floor: int


class GetView(_Message, frozen=True, tag=4, array_like=True, gc=False):
    """I missed the start of this view: send StartView again."""

    view: int


class StartViewChange(_Message, frozen=True, tag=5, array_like=True, gc=False):
    """I would change to `wanted`, which binds nobody. I have left every view before
    `view` for good, and with it what I led there."""

    view: int
    wanted: int
    handover: int = 0
    """If not 0: a leader left for `wanted` because it is slow, so often in a row by now."""


class DoViewChange(_Message, frozen=True, tag=6, array_like=True, gc=False):
    """To the leader of `view`: I take no part in earlier views any more, and my log has
    `op` entries, as of the view `last_normal`. `elapsed_ms` is the most that I heard of
    the log's clock, `wall_ms` what my own wall clock says."""

    view: int
    last_normal: int
    op: int
    commit: int
    elapsed_ms: int
    wall_ms: int


class StartView(_Message, frozen=True, tag=7, array_like=True, gc=False):
    """New leader: the view begins with the log of `base_view`, `op` entries long."""

    view: int
    base_view: int
    op: int
    commit: int
    sent_ms: int


class Fetch(_Message, frozen=True, tag=8, array_like=True, gc=False):
    """Send me the log of this view from `first` on. `attempt` counts refusals."""

    view: int
    first: int
    attempt: int


class Entries(_Message, frozen=True, tag=9, array_like=True):
    """Entries `first`, `first` + 1, …; the sender's log ends with `last`."""

    view: int
    first: int
    entries: tuple[Entry, ...]
    last: int
    commit: int


class Truncated(_Message, frozen=True, tag=10, array_like=True, gc=False):
    """The log begins after `floor`: get a snapshot, at least that new, from `donor`."""

    view: int
    floor: int
    donor: int


class GetSnapshot(_Message, frozen=True, tag=11, array_like=True, gc=False):
    """Chunk `index` of the snapshot `nonce`; index 0 begins it."""

    nonce: int
    index: int


class SnapshotChunk(_Message, frozen=True, tag=12, array_like=True, gc=False):
    """A part of the state after `op`, which was committed at the latest in `view`.

    `last` comes with no data, after the whole.
    """

    nonce: int
    index: int
    view: int
    op: int
    time_ms: int
    elapsed_ms: int
    data: bytes
    last: bool


class SnapshotGone(_Message, frozen=True, tag=13, array_like=True, gc=False):
    """This snapshot cannot be continued."""

    nonce: int


class Hello(_Message, frozen=True, tag=14, array_like=True, gc=False):
    """I lost my memory and have no number yet: which lives do you know?"""

    nonce: int


class HelloReply(_Message, frozen=True, tag=15, array_like=True, gc=False):
    """To the process that drew `nonce`: these, and a later one of your slot than you are
    if you have told me of yours."""

    nonce: int


class Recovery(_Message, frozen=True, tag=16, array_like=True, gc=False):
    """I begin the life that my vector shows: remember it, and tell me your view."""


class RecoveryReply(_Message, frozen=True, tag=17, array_like=True, gc=False):
    """To the life that my vector shows of your slot. `leads`: I lead `view`, which is
    under way, and its log has `op` entries."""

    view: int
    leads: bool
    op: int


class Probe(_Message, frozen=True, tag=18, array_like=True, gc=False):
    """Leader: measure your round trips to the other followers, and tell me what you know."""

    view: int


class Ping(_Message, frozen=True, tag=19, array_like=True, gc=False):
    view: int
    sent_ms: int


class Pong(_Message, frozen=True, tag=20, array_like=True, gc=False):
    """`sent_ms` is what the Ping said."""

    view: int
    sent_ms: int


UNKNOWN = -1


class Paces(_Message, frozen=True, tag=21, array_like=True, gc=False):
    """My latest round trips to the voters of each slot, in milliseconds, or UNKNOWN."""

    view: int
    trips: tuple[int, ...]


Message = (
    Prepare
    | PrepareOk
    | Heartbeat
    | GetView
    | StartViewChange
    | DoViewChange
    | StartView
    | Fetch
    | Entries
    | Truncated
    | GetSnapshot
    | SnapshotChunk
    | SnapshotGone
    | Hello
    | HelloReply
    | Recovery
    | RecoveryReply
    | Probe
    | Ping
    | Pong
    | Paces
)

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode
