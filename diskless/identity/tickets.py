"""How a ticket becomes keys, in two messages and a greeting: what each side computes, no sockets.

    office   → GREETING     a nonce
    redeemer → REDEMPTION   which ticket, a nonce, half of a key agreement, its proof
    office   → BOX          the other half, the keys: sealed

A proof is an HMAC under the ticket's secret over all that was said; the box is sealed
(AES-256-GCM) under a key drawn from both the ticket's secret and an X25519 agreement whose halves
are forgotten at once. So without the ticket nobody gets anything or can pretend to be either
side; and a ticket that is found later, with a recording of how it was redeemed, opens
nothing.
"""

import hmac
import secrets

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from diskless.errors import Unauthorized
from diskless.identity import keyfile
from diskless.identity.keyfile import Keys

NONCE_BYTES = 16
REDEMPTION_BYTES_MAX = 512
BOX_BYTES_MAX = 64 * 1024

_LABEL = b"diskless ticket 1"
_GCM_NONCE = bytes(12)
"""Always the same: each key seals one box."""


class Ticket(Struct, frozen=True, kw_only=True):
    """Good for the keys of a cluster, once and not for long, at the office that issued it."""

    office: str
    """host:port."""
    id: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Ticket({self.office!r})"  # a secret is in no log


class Greeting(Struct, frozen=True, array_like=True):
    nonce: bytes


class Redemption(Struct, frozen=True, array_like=True):
    ticket: bytes
    nonce: bytes
    half: bytes
    proof: bytes


class Box(Struct, frozen=True, array_like=True):
    half: bytes
    sealed: bytes


def issue(office: str) -> Ticket:
    return Ticket(office=office, id=secrets.token_bytes(16), secret=secrets.token_bytes(32))


def greet() -> Greeting:
    return Greeting(secrets.token_bytes(NONCE_BYTES))


class Redeemer:
    """The side that brings a ticket, for one try."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._private = X25519PrivateKey.generate()

    def answer(self, greeting: Greeting) -> Redemption:
        half = self._private.public_key().public_bytes_raw()
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._said = (greeting.nonce, self._ticket.id, nonce, half)
        proof = _prove(self._ticket.secret, *self._said)
        return Redemption(self._ticket.id, nonce, half, proof)

    def open(self, box: Box) -> Keys:
        """Raises Unauthorized if its sealer does not know the ticket."""
        try:
            key = _agree(self._private, box.half, self._ticket.secret, *self._said, box.half)
            return keyfile.decode(AESGCM(key).decrypt(_GCM_NONCE, box.sealed, _LABEL))
        except (ValueError, InvalidTag):
            raise Unauthorized(
                f"the process at {self._ticket.office} has not issued this ticket"
            ) from None


def is_proved(redemption: Redemption, greeting: Greeting, secret: bytes) -> bool:
    """Whether the sender knows the secret of that ticket, now: it costs one HMAC."""
    said = (greeting.nonce, redemption.ticket, redemption.nonce, redemption.half)
    return hmac.compare_digest(redemption.proof, _prove(secret, *said))


def seal(redemption: Redemption, greeting: Greeting, secret: bytes, keys: Keys) -> Box:
    """For a redemption that was proved. Raises Unauthorized if its half agrees on nothing."""
    private = X25519PrivateKey.generate()
    half = private.public_key().public_bytes_raw()
    said = (greeting.nonce, redemption.ticket, redemption.nonce, redemption.half, half)
    try:
        key = _agree(private, redemption.half, secret, *said)
    except ValueError:
        raise Unauthorized("that is no half of a key agreement") from None
    return Box(half, AESGCM(key).encrypt(_GCM_NONCE, keyfile.encode(keys), _LABEL))


def _agree(private: X25519PrivateKey, half: bytes, secret: bytes, *said: bytes) -> bytes:
    shared = private.exchange(X25519PublicKey.from_public_bytes(half))
    kdf = HKDF(hashes.SHA256(), 32, salt=secret, info=_joined(b"box", *said))
    return kdf.derive(shared)


def _prove(secret: bytes, *said: bytes) -> bytes:
    return hmac.digest(secret, _joined(b"redeem", *said), "sha256")


def _joined(*facts: bytes) -> bytes:
    """Each behind its length, so that no two lists read alike."""
    return _LABEL + b"".join(len(fact).to_bytes(4) + fact for fact in facts)


encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode
