"""What an agent gives to one principal to bring back: extents, sealed stripes, sessions.

Each carries a mark of its own making (identity/grants.py), so that any agent knows that it was
given to a caller that brings it. Extents are marked for principals that may not read everything.
Sessions are counted by the namespace, so anyone could name another's: what a client gets is the
count with a mark beside it, in one number, which it need not tell apart.
"""

from collections.abc import Iterable, Sequence

from diskless.errors import CapacityExceeded, Forbidden
from diskless.identity.claims import Keyring
from diskless.identity.grants import Grants
from diskless.identity.handshake import Principal
from diskless.model import Extent, Place, Stripe
from diskless.namespace.sessions import EPOCH_SESSION_BITS
from diskless.protocol.messages import MarkedExtent, MarkedStripe

SESSION_BITS = 30
"""Of a session's number that are its count: a billion of them."""
SESSION_MARK_BITS = 63 - SESSION_BITS
"""The rest. A wrong guess ends the connection, and is counted as a refusal."""


EPOCHS_MAX = 64
"""Earlier epochs whose sessions are told from others' that were never anybody's."""


class Marks:
    def __init__(self, keyring: Keyring, *, epoch: int = 0) -> None:
        """`epoch` is the one that the namespace's sessions are counted in."""
        self._grants = Grants(keyring)
        self._epoch = epoch

    # Extents.

    def extents(self, holder: Principal, extents: Iterable[Extent]) -> list[MarkedExtent]:
        return [self._extent(holder, extent) for extent in extents]

    def _extent(self, holder: Principal, extent: Extent) -> MarkedExtent:
        stripe, offset, length = extent.stripe, extent.offset, extent.length
        mark = self._grants.mark("extent", holder.text, stripe, offset, length)
        return MarkedExtent(stripe, offset, length, f"{offset}:{length}:{mark}")

    def check_extents(self, holder: Principal, pieces: Sequence[MarkedExtent]) -> None:
        """Raises Forbidden unless each piece lies in an extent that the holder was given."""
        for piece in pieces:
            try:
                first, count, mark = piece.mark.split(":")
                offset, length = int(first), int(count)
            except ValueError:
                raise _not_opened(piece) from None
            inside = offset <= piece.offset and piece.offset + piece.length <= offset + length
            # As they were written: "+7" and "7" are one number, and one has a mark.
            facts = (piece.stripe, first, count)
            if not inside or not self._grants.holds(mark, "extent", holder.text, *facts):
                raise _not_opened(piece)

    # Stripes.

    def stripes(self, holder: Principal, sealed: Iterable[Stripe]) -> list[MarkedStripe]:
        return [
            MarkedStripe(*_facts(stripe), mark=self._stripe_mark(holder, stripe))
            for stripe in sealed
        ]

    def resumed(self, holder: Principal, stripes: Sequence[MarkedStripe]) -> list[Stripe]:
        """The stripes without their marks. Raises Forbidden for one that was not sealed for
        this principal, or is not as it was."""
        for stripe in stripes:
            if not self._grants.holds(stripe.mark, "stripe", holder.text, *_texts(stripe)):
                raise Forbidden(
                    f"stripe {stripe.id[:80]} was not sealed for {holder.name!r}: only the client "
                    "that began an upload can continue it"
                )
        return [Stripe(*_facts(stripe)) for stripe in stripes]

    def _stripe_mark(self, holder: Principal, stripe: Stripe) -> str:
        return self._grants.mark("stripe", holder.text, *_texts(stripe))

    # Sessions.

    def session(self, holder: Principal, count: int) -> int:
        """The number under which this principal knows a session."""
        low = count & ((1 << EPOCH_SESSION_BITS) - 1)
        if low >> SESSION_BITS:
            raise CapacityExceeded("the cluster has opened all sessions that it ever will")
        return self._session_mark(holder, count) << SESSION_BITS | low

    def session_count(self, holder: Principal, number: int) -> int:
        """The session that this principal means, perhaps of an earlier epoch. Raises Forbidden
        if it is not its own."""
        low = number & ((1 << SESSION_BITS) - 1)
        for epoch in range(self._epoch, max(self._epoch - EPOCHS_MAX, -1), -1):
            count = epoch << EPOCH_SESSION_BITS | low
            if number >> SESSION_BITS == self._session_mark(holder, count):
                return count
        raise Forbidden(f"that session is not one of {holder.name!r}")

    def _session_mark(self, holder: Principal, count: int) -> int:
        mark = int(self._grants.mark("session", holder.text, count), 16)
        return mark & ((1 << SESSION_MARK_BITS) - 1)


def _facts(stripe: Stripe) -> tuple[str, int, int, int, tuple[Place, ...], int, str]:
    return (
        stripe.id,
        stripe.data_shards,
        stripe.parity_shards,
        stripe.payload_bytes,
        stripe.places,
        stripe.version,
        stripe.codec,
    )


def _texts(stripe: Stripe) -> tuple[object, ...]:
    """The same, each as one word: a number that no log has room for is a text like another."""
    places = ",".join([f"{place.slot}.{place.incarnation}" for place in stripe.places])
    return (*_facts(stripe)[:4], places, stripe.version, stripe.codec)


def _not_opened(piece: MarkedExtent) -> Forbidden:
    return Forbidden(
        f"stripe {piece.stripe[:80]}: those bytes are of no file that was opened with this token"
    )
