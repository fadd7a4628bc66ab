"""Whether a new file's bytes are where its command says: inline, or in stripes that it brings."""

from diskless.errors import BadRequest, DisklessError
from diskless.model import Extent, Stripe
from diskless.namespace.commands import NewFile

Offered = dict[str, Stripe | DisklessError]
"""The stripes of a command by id; an error says why one cannot be used."""


def check_content(file: NewFile, offered: Offered) -> None:
    """Raises BadRequest, or why a stripe that the file lies in cannot be used."""
    if (file.inline is None) != bool(file.extents):
        raise BadRequest(f"{file.path}: its bytes are neither all inline nor all in extents")
    if file.inline is not None and len(file.inline) == file.size:
        return
    held = len(file.inline) if file.inline is not None else 0
    for extent in file.extents:
        stripe = offered.get(extent.stripe)
        if isinstance(stripe, DisklessError):
            raise stripe
        length = extent.length
        if (
            stripe is None
            or extent.offset < 0
            or length < 1
            or extent.offset + length > stripe.payload_bytes
        ):
            raise BadRequest(f"{file.path}: no such bytes in this commit: {extent}")
        held += length
    if held != file.size:
        raise BadRequest(f"{file.path}: its parts do not add up to {file.size} bytes")


def check_shape(stripe: Stripe) -> None:
    """Raises BadRequest for a stripe that no writer makes."""
    slots = {place.slot for place in stripe.places}
    total = stripe.data_shards + stripe.parity_shards
    least = min(stripe.data_shards, stripe.payload_bytes)
    bare = stripe.parity_shards < 1 and (stripe.parity_shards, stripe.data_shards) != (0, 1)
    if least < 1 or bare or not len(slots) == len(stripe.places) == total:
        raise BadRequest(f"stripe {stripe.id}: {total} shards must be on as many agents")


def lies_in(extent: Extent, stripe: Stripe) -> bool:
    end = extent.offset + extent.length
    return extent.offset >= 0 and extent.length >= 1 and end <= stripe.payload_bytes
