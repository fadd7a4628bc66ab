"""Challenge and response: both sides prove that they have a principal's key, and send nothing
that could be used again.

    caller → KNOCK   its claims, a nonce
    agent  → CHALLENGE   its slot, a nonce, its proof: made with the key of those claims
    caller → PROOF   made with the same key
    agent  → WELCOME   where the last step may reach another process than the first (gRPC, whose
                       calls have connections of their own): a second proof of the agent's

A proof is HMAC-SHA-256 over who proves it, the door, the cluster, the slot, both nonces, the
claims, and what the door adds (`about`: the address that was dialled, whom the caller is). So
a recorded handshake is of no use anywhere, an agent that is asked to prove itself cannot be
made to prove anything else, and a stranger learns claims, which are no secret. It does not
protect what follows: anyone who can change packets on their way can use a connection that others
have opened. That is what TLS is for.
"""

import hmac
import secrets
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from msgspec import Struct

from diskless.errors import Unauthorized
from diskless.identity.claims import Claims, Credential, Keyring, Role, read_claims

NONCE_CHARS = 32
PROOF_CHARS = 64
MESSAGE_BYTES_MAX = 6 * 1024
"""No message of a handshake is larger."""
HANDSHAKE_TIMEOUT_S = 5.0
"""From the opening of a connection to its last proof."""

_LABEL = b"diskless handshake 1"


class Knock(Struct, frozen=True, array_like=True):
    claims: str
    nonce: str


class Challenge(Struct, frozen=True, array_like=True):
    slot: int
    nonce: str
    proof: str


class Proof(Struct, frozen=True, array_like=True):
    proof: str


@dataclass(frozen=True, slots=True)
class Principal:
    """Who has proved to be there."""

    text: str
    claims: Claims

    @property
    def name(self) -> str:
        return self.claims.name

    @property
    def is_agent(self) -> bool:
        return self.claims.role is Role.AGENT


class Caller:
    """The calling side of one handshake."""

    def __init__(self, credential: Credential, *, door: str, about: str = "") -> None:
        self._credential = credential
        self._door = door
        self._about = about
        self._nonce = secrets.token_hex(NONCE_CHARS // 2)
        self._answered: Challenge | None = None

    def knock(self) -> Knock:
        return Knock(self._credential.text, self._nonce)

    def answer(self, challenge: Challenge) -> Proof | None:
        """Our proof; None if the other side has not proved itself, and must get nothing."""
        if not _is_nonce(challenge.nonce) or not isinstance(challenge.slot, int):
            return None
        if not _equal(challenge.proof, self._proof("agent", challenge)):
            return None
        self._answered = challenge
        return Proof(self._proof("caller", challenge))

    def is_welcome(self, welcome: Proof) -> bool:
        """Whether the process that took our proof is the one that we proved ourselves to."""
        if self._answered is None:
            return False
        return _equal(welcome.proof, self._proof("welcome", self._answered))

    def _proof(self, side: str, challenge: Challenge) -> str:
        credential = self._credential
        return _prove(
            credential.key,
            side,
            self._door,
            credential.claims.cluster,
            str(challenge.slot),
            self._nonce,
            challenge.nonce,
            credential.text,
            self._about,
        )


class Pending:
    """A knock that was answered, and what must come back."""

    __slots__ = ("_expected", "challenge", "principal", "welcome")

    def __init__(
        self, principal: Principal, challenge: Challenge, *, expected: str, welcome: str
    ) -> None:
        self.principal = principal
        self.challenge = challenge
        self.welcome = Proof(welcome)
        """For a caller that has been admitted, at doors that say so."""
        self._expected = expected

    def admit(self, proof: Proof) -> Principal:
        """Raises Unauthorized."""
        if not _equal(proof.proof, self._expected):
            raise Unauthorized(f"the key of {self.principal.name!r} is wrong", why="wrong key")
        return self.principal


class Doorkeeper:
    """An agent's judgement of callers, the same at all its doors."""

    def __init__(
        self,
        keyring: Keyring,
        *,
        slot: int,
        revoked: Container[str] = (),
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`revoked` are names, looked up each time."""
        self._keyring = keyring
        self._slot = slot
        self.revoked = revoked
        self._wall_s = wall_s

    def challenge(
        self, knock: Knock, *, door: str, about: str = "", role: Role | None = None
    ) -> Pending:
        """Proves this agent to the caller. Raises Unauthorized if the claims are not good here,
        or not of the `role` that the door is for."""
        if not _is_nonce(knock.nonce):
            raise Unauthorized("that is no handshake of diskless", why="no handshake")
        claims = read_claims(knock.claims)
        self.check(claims)
        if role is not None and claims.role is not role:
            raise Unauthorized(
                f"this door is for {role}s, and {claims.name!r} is {claims.role}", why="wrong role"
            )
        key = self._keyring.key_of(knock.claims)
        nonce = secrets.token_hex(NONCE_CHARS // 2)
        facts = (
            door, self._keyring.cluster, str(self._slot), knock.nonce, nonce, knock.claims, about
        )  # fmt: skip
        challenge = Challenge(self._slot, nonce, _prove(key, "agent", *facts))
        return Pending(
            Principal(knock.claims, claims),
            challenge,
            expected=_prove(key, "caller", *facts),
            welcome=_prove(key, "welcome", *facts),
        )

    def check(self, claims: Claims) -> None:
        """Raises Unauthorized if the claims are not good here, or not any more."""
        if claims.cluster != self._keyring.cluster:
            raise Unauthorized(
                f"the key of {claims.name!r} is for another cluster", why="another cluster"
            )
        if claims.expires_s and self._wall_s() >= claims.expires_s:
            raise Unauthorized(
                f"the token {claims.name!r} has expired: make another with `diskless token create`",
                why="expired",
            )
        if claims.name in self.revoked and claims.role is Role.CLIENT:
            raise Unauthorized(f"the token {claims.name!r} was revoked", why="revoked")


def _is_nonce(text: str) -> bool:
    return len(text) == NONCE_CHARS and text.isascii() and text.isalnum()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())


def _prove(key: bytes, *facts: str) -> str:
    """Each fact behind its length, so that no two lists of facts read alike."""
    parts = [_LABEL]
    for fact in facts:
        data = fact.encode(errors="surrogatepass")
        parts += (len(data).to_bytes(4), data)
    return hmac.digest(key, b"".join(parts), "sha256").hex()
