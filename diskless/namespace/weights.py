"""What the namespace's objects weigh in memory: pure functions from objects to bytes.

All voters hold the same namespace and refuse its growth alike, so a weight follows from
the object alone, never from the interpreter that holds it: no `sys.getsizeof`. That makes
the constants part of the protocol. They were measured with CPython 3.11 on 64-bit Linux,
as growth of the resident memory over 100,000 objects of a kind (5 to 10 % more than what
`tracemalloc` counts, for the allocator's own losses), and rounded up a little. A test compares
the account with what the state really takes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from diskless import paths
from diskless.model import Stripe
from diskless.namespace.commands import NewFile

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

FILE_BYTES = 296
"""A file, its record, and its place in the table of files."""
DIRECTORY_BYTES = 104
"""A directory beside the nodes that hold its entries."""
NODE_BYTES = 160
"""A node of a directory's tree; more is in the weight of each entry."""
NAME_BYTES = 88
"""A name beside its characters, with its place in a leaf or among an inner node's keys."""
SPLIT_NODES_MAX = 6
"""That one further entry can make: of a directory with more entries than there can be."""
SNAPSHOT_BYTES = 240
"""A snapshot's row in the tables by number and by path, beside the characters of its names."""
EXTENT_BYTES = 232
"""An extent of a file's record, and what the ledger notes of that file for it."""
STRIPE_BYTES = 736
PLACE_BYTES = 40
"""Of each shard of a stripe."""
REAPED_BYTES = 96
"""The number of a stripe that is remembered until a fence covers it."""
SESSION_BYTES = 400
ANSWER_BYTES = 18
"""Of a session's row of answers, where most of them lie side by side as numbers."""
REFUSAL_BYTES = 88
"""Of an answer that is a refusal, beside its place in the row."""
LEASE_BYTES = 280
"""A lease in its table, beside the characters of its names."""
TOKEN_BYTES = 328
"""A token in its tables, revoked as it may be, beside its name and its paths."""

POLICY_BYTES = 208
"""A path's policies in their table, beside the characters of the path."""
POLICY_KEY_BYTES = 112
"""Of each, its key and its value, beside the characters of the value."""
ASKED_BYTES = 96
"""What is made ready of a path's quota, or of its parity and priority: of both, if it asks for
several things."""
KEPT_BYTES = 120
"""Where a file lies in the tier."""
PART_BYTES = 208
"""Where one part of a large file lies."""
COLD_BYTES = 112
"""That a file lies there alone."""
PLAN_BYTES = 160
"""That a path has a plan beyond the horizon, beside the characters of the path."""
SEGMENT_BYTES = 152
"""A segment of the tier, beside its name."""
MARK_BYTES = 1024


def name_bytes(name: str) -> int:
    """CPython keeps 1, 2 or 4 bytes for each character; more than 1 only with others than
    ASCII, for which the most is taken."""
    return NAME_BYTES + (len(name) if name.isascii() else 4 * len(name))


def entry_bytes(name: str) -> int:
    """The most that a directory can grow by an entry: nodes may have to be split."""
    return name_bytes(name) + SPLIT_NODES_MAX * NODE_BYTES


def snapshot_bytes(path: str, name: str, cut: str) -> int:
    return SNAPSHOT_BYTES + name_bytes(path) + name_bytes(name) + (name_bytes(cut) if cut else 0)


def token_bytes(name: str, own: Sequence[str]) -> int:
    return TOKEN_BYTES + name_bytes(name) + sum(map(name_bytes, own))


def policy_bytes(path: str, own: Mapping[str, str]) -> int:
    size = POLICY_BYTES + name_bytes(path) + sum(map(len, own.values()))
    return size + POLICY_KEY_BYTES * len(own) + (2 * ASKED_BYTES if len(own) > 1 else ASKED_BYTES)


def segment_bytes(name: str) -> int:
    return SEGMENT_BYTES + name_bytes(name)


def plan_bytes(path: str) -> int:
    return PLAN_BYTES + name_bytes(path)


def path_bytes(path: str) -> int:
    """The most that a path's missing directories and its last name can take."""
    nodes = SPLIT_NODES_MAX + path.count("/")
    characters = len(path) if path.isascii() else 4 * len(path)
    return path.count("/") * (DIRECTORY_BYTES + NAME_BYTES) + nodes * NODE_BYTES + characters


def stripe_bytes(stripe: Stripe) -> int:
    return STRIPE_BYTES + PLACE_BYTES * len(stripe.places)


def put_bytes(files: Sequence[NewFile], stripes: Collection[Stripe]) -> int:
    """The most that the namespace can grow by a put of these files, in these stripes."""
    if len(files) == 1 and not stripes:
        return FILE_BYTES + len(files[0].inline or b"") + path_bytes(files[0].path)
    size = FILE_BYTES * len(files)
    for file in files:
        size += len(file.inline or b"") + EXTENT_BYTES * len(file.extents)
    if len(files) == 1:
        size += path_bytes(files[0].path)
    else:
        for file in files:  # Each may split a leaf, and a few together the nodes above.
            size += name_bytes(file.path.rpartition("/")[2]) + 2 * NODE_BYTES
        above = paths.above(file.path for file in files)
        size += SPLIT_NODES_MAX * NODE_BYTES * (1 + len(above))
        for directory in above:
            size += DIRECTORY_BYTES + NODE_BYTES + name_bytes(directory.rpartition("/")[2])
    for stripe in stripes:
        size += stripe_bytes(stripe)
    return size


def put_bytes_bound(
    files: Sequence[NewFile], stripes: Collection[Stripe], above: Collection[str]
) -> int:
    """At least `put_bytes` of several files, below these directories, and sooner told."""
    each = FILE_BYTES + NAME_BYTES + 2 * NODE_BYTES
    names = sum([len(file.path) for file in files]) + sum(map(len, above))
    extents = sum([len(file.extents) for file in files])
    one_more = (SPLIT_NODES_MAX + 1) * NODE_BYTES + DIRECTORY_BYTES + NAME_BYTES
    return (
        each * len(files)
        + sum([file.size for file in files])
        + 4 * names
        + EXTENT_BYTES * extents
        + one_more * (1 + len(above))
        + sum(map(stripe_bytes, stripes))
    )


def total(state: "NamespaceState") -> int:
    """The sum of `by_kind`, asked with every put."""
    ledger, counts = state.ledger, state.tree.counts
    return (
        state.bytes_inline
        + FILE_BYTES * len(state.files)
        + DIRECTORY_BYTES * counts.directories
        + NODE_BYTES * counts.nodes
        + counts.name_bytes
        + state.history.bytes_used
        + STRIPE_BYTES * len(ledger.entries)
        + PLACE_BYTES * ledger.places
        + EXTENT_BYTES * state.extents
        + (REAPED_BYTES * sum(map(len, ledger.reaped.values())) if ledger.reaped else 0)
        + state.sessions.bytes_used
        + state.leases.bytes_used
        + state.tokens.bytes_used
        + state.policies.bytes_used
        + (tier_bytes(state) if state.tier.attached or state.tier.places else 0)
        + (state.marked.bytes_used if state.marked is not None else 0)
    )


def tier_bytes(state: "NamespaceState") -> int:
    tier = state.tier
    only_there = len(tier.cold) + len(tier.evicted)
    files = KEPT_BYTES * len(tier.places) + COLD_BYTES * only_there
    parts = PART_BYTES * tier.parts_kept
    return files + parts + tier.segments_bytes_used + tier.plans.bytes_used


def by_kind(state: "NamespaceState") -> dict[str, int]:
    """What the state takes now. From counts that are kept as commands are applied."""
    ledger, counts = state.ledger, state.tree.counts
    return {
        "inline": state.bytes_inline,
        "files": FILE_BYTES * len(state.files),
        "directories": DIRECTORY_BYTES * counts.directories + NODE_BYTES * counts.nodes,
        "names": counts.name_bytes,
        "snapshots": state.history.bytes_used,
        "ledger": STRIPE_BYTES * len(ledger.entries)
        + PLACE_BYTES * ledger.places
        + EXTENT_BYTES * state.extents
        + REAPED_BYTES * sum(map(len, ledger.reaped.values())),
        "answers": state.sessions.bytes_used + state.leases.bytes_used,
        "tokens": state.tokens.bytes_used,
        "policies": state.policies.bytes_used,
        "tier": tier_bytes(state),
        "mark": state.marked.bytes_used if state.marked is not None else 0,
    }
