"""What the namespace's objects weigh in memory: pure functions from objects to bytes.

All voters hold the same namespace and refuse its growth alike, so a weight follows from
the object alone, never from the interpreter that holds it: no `sys.getsizeof`. That makes
the constants part of the protocol. They were measured with CPython 3.11 on 64-bit Linux,
as growth of the resident memory over 100,000 objects of a kind (5 to 10 % more than what
`tracemalloc` counts, for the allocator's own losses), and rounded up a little. A test compares
the account with what the state really takes.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from diskless import paths
from diskless.model import Stripe
from diskless.namespace.commands import NewFile

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

FILE_BYTES = 336
"""A file's node, its record, and its places in its directory and in the table of files."""
DIRECTORY_BYTES = 304
"""A directory with a few entries; more are in the weight of each entry."""
NAME_BYTES = 56
"""A name beside its characters."""
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


def name_bytes(name: str) -> int:
    """CPython keeps 1, 2 or 4 bytes for each character; more than 1 only with others than
    ASCII, for which the most is taken."""
    return NAME_BYTES + (len(name) if name.isascii() else 4 * len(name))


def path_bytes(path: str) -> int:
    """The most that a path's missing directories and its last name can take."""
    parts = path.count("/")
    return parts * (DIRECTORY_BYTES + NAME_BYTES) + (len(path) if path.isascii() else 4 * len(path))


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
        for file in files:
            size += name_bytes(file.path.rpartition("/")[2])
        for directory in paths.above(file.path for file in files):
            size += DIRECTORY_BYTES + name_bytes(directory.rpartition("/")[2])
    for stripe in stripes:
        size += stripe_bytes(stripe)
    return size


def total(state: "NamespaceState") -> int:
    """The sum of `by_kind`, asked with every put."""
    ledger, root, doomed = state.ledger, state.tree.root, state.doomed
    return (
        state.bytes_inline
        + FILE_BYTES * len(state.files)
        + DIRECTORY_BYTES * (root.directories + doomed.directories)
        + root.name_bytes
        + doomed.name_bytes
        + STRIPE_BYTES * len(ledger.entries)
        + PLACE_BYTES * ledger.places
        + EXTENT_BYTES * state.extents
        + (REAPED_BYTES * sum(map(len, ledger.reaped.values())) if ledger.reaped else 0)
        + state.sessions.bytes_used
    )


def by_kind(state: "NamespaceState") -> dict[str, int]:
    """What the state takes now. From counts that are kept as commands are applied."""
    ledger, tree, doomed = state.ledger, state.tree, state.doomed
    return {
        "inline": state.bytes_inline,
        "files": FILE_BYTES * len(state.files),
        "directories": DIRECTORY_BYTES * (tree.directories + doomed.directories),
        "names": tree.name_bytes + doomed.name_bytes,
        "ledger": STRIPE_BYTES * len(ledger.entries)
        + PLACE_BYTES * ledger.places
        + EXTENT_BYTES * state.extents
        + REAPED_BYTES * sum(map(len, ledger.reaped.values())),
        "answers": state.sessions.bytes_used,
    }
