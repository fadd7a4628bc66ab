"""What commands do to where bytes lie: files into other stripes, and shards to other agents."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from diskless.model import Extent, FileRecord, Stripe
from diskless.namespace import commands as c
from diskless.namespace import grading
from diskless.namespace.content import Offered, lies_in

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState


def relocate(state: "NamespaceState", command: c.Relocate) -> c.Done:
    """Counts in `number` the files that moved; the others had changed meanwhile."""
    offered = state.examine(command.stripes)
    moved = 0
    for move in command.moves:
        file = state.files.get(move.id)
        if file is None or file.record.layout != move.layout:
            continue
        old = file.record
        if not _holds_all(state, old, move.extents, offered):
            continue
        file.record = replace(old, inline=None, extents=move.extents, layout=old.layout + 1)
        # In this order, so that a stripe that keeps some of the bytes stays alive.
        state.hold(file, offered)
        state.let_go([old], moved=True)
        if grading.is_thin(state, file.record):
            state.thin[file.record.id] = None
        moved += 1
    return c.Done(moved, changed=moved > 0)


def _holds_all(
    state: "NamespaceState", record: FileRecord, extents: tuple[Extent, ...], offered: Offered
) -> bool:
    """Whether all of a file's bytes can be there: in its own stripes, or in offered ones."""
    kept = {extent.stripe for extent in record.extents}
    for extent in extents:
        known = extent.stripe in kept
        stripe = state.ledger.get(extent.stripe) if known else offered.get(extent.stripe)
        if not isinstance(stripe, Stripe) or not lies_in(extent, stripe):
            return False
    return bool(extents) and sum(extent.length for extent in extents) == record.size


def move_shards(state: "NamespaceState", command: c.MoveShards) -> c.Done:
    moved = sum(_move(state, move) for move in command.moves)
    return c.Done(moved, changed=moved > 0)


def _move(state: "NamespaceState", move: c.ShardMove) -> bool:
    """Whether the stripe is still as the mover knew it, and is moved."""
    entry = state.ledger.entries.get(move.stripe)
    if entry is None or entry.stripe.version != move.version:
        return False
    slots = [place.slot for place in entry.stripe.places]
    for index, place in move.places:
        if not (0 <= index < len(slots) and state.is_up(place)):
            return False
        slots[index] = place.slot
    if len(set(slots)) < len(slots):
        return False  # one agent's death would cost two shards
    state.ledger.move(move.stripe, move.places)
    return True
