"""What lies in a stripe, as the tier has it: for reads of stripes of which too little is left."""

from diskless.model import Extent
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import Tier
from diskless.namespace.tree import File
from diskless.namespace.views import TierPiece, tier_place


def pieces_behind(state: NamespaceState, extent: Extent) -> list[TierPiece] | None:
    """The same bytes as parts of files in the tier, in order; None if it has not all of them.
    Raises NotFound for a stripe that is gone, also for a freed one: who has the file open finds
    it elsewhere, if anywhere."""
    entry = state.ledger.live(extent.stripe)
    if entry is None:
        state.ledger.get(extent.stripe)
        raise state.ledger.gone(extent.stripe)
    found: list[tuple[int, TierPiece]] = []
    for id_ in entry.files:
        if state.tier.is_safe(id_):
            found += _overlaps(state.files[id_], extent, state.tier)
    found.sort(key=lambda one: one[0])
    at = extent.offset
    for start, piece in found:
        if start != at:
            return None
        at += piece.length
    return [piece for _, piece in found] if at == extent.offset + extent.length else None


def _overlaps(file: File, extent: Extent, tier: Tier) -> list[tuple[int, TierPiece]]:
    """Where a file has bytes of the extent: from which of the stripe's on."""
    record = file.record
    found: list[tuple[int, TierPiece]] = []
    before = 0
    for own in record.extents:
        low = max(own.offset, extent.offset)
        high = min(own.offset + own.length, extent.offset + extent.length)
        if own.stripe == extent.stripe and low < high:
            offset = before + low - own.offset
            place = tier_place(tier, record.id, offset)
            if place is None:
                return []
            piece = TierPiece(record.id, record.size, record.checksum, offset, high - low, place)
            found.append((low, piece))
        before += own.length
    return found
