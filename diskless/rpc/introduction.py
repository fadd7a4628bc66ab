"""How a stream between two agents begins: each proves to the other who it is.

Two calls. `Introduction.Knock` brings the caller's claims and nonce and gets the agent's
challenge. Then the stream itself is opened with the caller's proof, and the agent's welcome is
its first answer: the caller says nothing before that. All of it is metadata, which gRPC bounds to a
few KiB: a stranger's stream is never read from, where a message may have 16 MiB, and none is
left waiting. What is proved includes whom the caller means, at which address, for which
service: so nobody at another address can pass it on.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
import msgspec
from msgspec import Struct

from diskless.errors import AgentGone, BadRequest, Unauthorized, Unavailable
from diskless.identity.claims import Credential, Role
from diskless.identity.handshake import (
    HANDSHAKE_TIMEOUT_S,
    Caller,
    Challenge,
    Doorkeeper,
    Knock,
    Pending,
    Proof,
)
from diskless.identity.refusals import LOG_INTERVAL_S, Seldom, one_line
from diskless.model import slot_name
from diskless.rpc.services import (
    ADDRESS_KEY,
    FROM_KEY,
    KNOCK_METHOD,
    METHOD_KEY,
    METHODS,
    PROTOCOL,
    PROTOCOL_KEY,
    SLOT_KEY,
    format_protocol,
    parse_protocol,
)

log = logging.getLogger(__name__)

DOOR = "grpc"
PENDING_MAX = 2048
"""Knocks that were answered and whose proof has not come; one more and the oldest is forgotten."""
KNOCK_BYTES_MAX = 1024
ADDRESS_CHARS_MAX = 300

KNOCK_KEY = "diskless-knock-bin"
CHALLENGE_KEY = "diskless-challenge-bin"
PROOF_KEY = "diskless-proof-bin"
WELCOME_KEY = "diskless-welcome-bin"

_NO_AGENT = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
"""What no agent of our cluster says to a knock of ours: others that listen at its port do."""

Metadata = tuple[tuple[str, str | bytes], ...]
S = TypeVar("S", bound=Struct)


class Answer(Struct, frozen=True, array_like=True):
    """The caller's proof, and which challenge it answers."""

    nonce: str
    proof: Proof


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a stream is for. Part of what both sides prove."""

    method: str
    slot: int
    """Whom the caller means: a restarted agent may have got the port of another."""
    dialled: str
    sender: int
    address: str
    """Where the caller's own gRPC door is."""
    protocol: str

    @property
    def about(self) -> str:
        facts = (
            self.method, self.slot, self.dialled, self.sender, self.address, self.protocol
        )  # fmt: skip
        return msgspec.json.encode(facts).decode()

    @property
    def metadata(self) -> Metadata:
        return (
            (METHOD_KEY, self.method),
            (SLOT_KEY, str(self.slot)),
            (FROM_KEY, str(self.sender)),
            (ADDRESS_KEY, self.address),
            (PROTOCOL_KEY, self.protocol),
        )


class Introducer:
    """The calling side of one agent."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._seldom = Seldom(LOG_INTERVAL_S)

    async def open(self, channel: grpc.aio.Channel, facts: Facts) -> Any:
        """A stream whose two ends know each other.

        Raises Unavailable, and AgentGone if the process there is not the agent that is meant:
        then that agent's process has ended, or somebody would not have got its port.
        """
        caller = Caller(self._credential, door=DOOR, about=facts.about)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                proof = await self._knock(channel, facts, caller)
                return await self._enter(channel, facts, caller, proof)
        except TimeoutError:
            raise Unavailable(f"it did not prove itself within {HANDSHAKE_TIMEOUT_S:g} s") from None

    async def _knock(
        self, channel: grpc.aio.Channel, facts: Facts, caller: Caller
    ) -> tuple[str, bytes]:
        knock = (KNOCK_KEY, msgspec.msgpack.encode(caller.knock()))
        call = channel.stream_stream(KNOCK_METHOD)(metadata=(*facts.metadata, knock))
        try:
            if (code := await call.code()) in _NO_AGENT:
                self._expose(facts, one_line(await call.details()))
            if code is not grpc.StatusCode.OK:
                raise await _error_of(call)
            # Not the initial metadata: that of a call which is over may be lost on its way.
            given = dict(await call.trailing_metadata() or ())
        finally:
            call.cancel()
        challenge = _decode(given.get(CHALLENGE_KEY), Challenge)
        proof = caller.answer(challenge) if challenge is not None else None
        if challenge is None or proof is None:
            self._expose(facts, "it cannot prove that it is")
        return PROOF_KEY, msgspec.msgpack.encode(Answer(challenge.nonce, proof))

    async def _enter(
        self,
        channel: grpc.aio.Channel,
        facts: Facts,
        caller: Caller,
        proof: tuple[str, bytes],
    ) -> Any:
        stream = channel.stream_stream(facts.method)(metadata=(proof,))
        try:
            given = dict(await stream.initial_metadata() or ())
            if WELCOME_KEY not in given and await stream.code() is not grpc.StatusCode.OK:
                raise await _error_of(stream)
            welcome = _decode(given.get(WELCOME_KEY), Proof)
            if welcome is None or not caller.is_welcome(welcome):
                self._expose(facts, "it is not the agent that answered before")
        except BaseException:  # also when cancelled: nobody else knows of it
            stream.cancel()
            raise
        return stream

    def _expose(self, facts: Facts, how: str) -> NoReturn:
        """One line in the log, however often it is tried, and an error for our callers."""
        who = f"the process at {facts.dialled} is not {slot_name(facts.slot)} of this cluster"
        if count := self._seldom.due(facts.dialled):
            log.warning("no agent address=%s error=%s: %s times=%d", facts.dialled, who, how, count)
        raise AgentGone(f"{who}: {how}")


async def _error_of(call: Any) -> grpc.aio.AioRpcError:
    """Of a call that has ended."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(await call.code(), nothing, nothing, details=await call.details())


def _decode(data: object, kind: type[S]) -> S | None:
    """None if it is nothing of that kind, as anybody may say anything."""
    try:
        return msgspec.msgpack.decode(data, type=kind) if isinstance(data, bytes) else None
    except (ValueError, RecursionError):  # msgspec's are ValueErrors
        return None


@dataclass(frozen=True, slots=True)
class Guest:
    """An agent that has proved itself."""

    sender: int
    address: str
    welcome: bytes


@dataclass(frozen=True, slots=True)
class _Expected:
    pending: Pending
    facts: Facts
    until_s: float


class Introductions:
    """The answering side of one agent."""

    def __init__(self, doorkeeper: Doorkeeper, *, slot: int, now_s: Callable[[], float]) -> None:
        self.address = ""
        """Where others are told that this agent is."""
        self._doorkeeper = doorkeeper
        self._slot = slot
        self._now_s = now_s
        self._expected: dict[str, _Expected] = {}  # by our nonce, the oldest first

    def challenge(self, given: Mapping[str, Any]) -> bytes:
        """What to answer to a knock with that metadata. Raises Unauthorized, BadRequest."""
        data = given.get(KNOCK_KEY)
        knock = _decode(data, Knock)
        if data is None or knock is None or len(data) > KNOCK_BYTES_MAX:
            raise Unauthorized("that is no handshake of diskless", why="no handshake")
        self._check_protocol(given)
        facts = self._facts(given)
        pending = self._doorkeeper.challenge(knock, door=DOOR, about=facts.about, role=Role.AGENT)
        if pending.principal.name != slot_name(facts.sender):
            raise Unauthorized(
                f"{pending.principal.name} speaks for {slot_name(facts.sender)}", why="wrong name"
            )
        now_s = self._now_s()
        self._forget(now_s, keep=PENDING_MAX - 1)
        self._expected[pending.challenge.nonce] = _Expected(
            pending, facts, now_s + HANDSHAKE_TIMEOUT_S
        )
        return msgspec.msgpack.encode(pending.challenge)

    def admit(self, method: str, given: Mapping[str, Any]) -> Guest:
        """The agent that opens a stream with that metadata. Raises Unauthorized, BadRequest."""
        answer = _decode(given.get(PROOF_KEY), Answer)
        if answer is None:
            if PROTOCOL_KEY in given:  # an agent from before there were knocks
                self._check_protocol(given)
            raise Unauthorized("that is no handshake of diskless", why="no handshake")
        self._forget(self._now_s(), keep=PENDING_MAX)
        expected = self._expected.pop(answer.nonce, None)
        if expected is None:
            raise Unauthorized("that answers no challenge of ours, or too late", why="no challenge")
        expected.pending.admit(answer.proof)
        if expected.facts.method != method:
            raise Unauthorized(f"that proof is for {expected.facts.method}", why="wrong method")
        welcome = msgspec.msgpack.encode(expected.pending.welcome)
        return Guest(expected.facts.sender, expected.facts.address, welcome)

    def _facts(self, given: Mapping[str, Any]) -> Facts:
        try:
            facts = Facts(
                method=str(given[METHOD_KEY]),
                slot=int(given[SLOT_KEY]),
                dialled=self.address,
                sender=int(given[FROM_KEY]),
                address=str(given[ADDRESS_KEY]),
                protocol=str(given[PROTOCOL_KEY]),
            )
        except (KeyError, ValueError) as error:
            raise BadRequest(f"malformed introduction: {error}") from None
        if facts.slot != self._slot:
            raise BadRequest(f"this is {slot_name(self._slot)}")
        if facts.method not in METHODS or len(facts.address) > ADDRESS_CHARS_MAX:
            raise BadRequest("malformed introduction: no such service, or no address")
        return facts

    def _check_protocol(self, given: Mapping[str, Any]) -> None:
        text = str(given.get(PROTOCOL_KEY, ""))
        version = parse_protocol(text)
        if version is None or version[0] != PROTOCOL[0]:
            raise BadRequest(
                f"{slot_name(self._slot)} speaks protocol {format_protocol(PROTOCOL)} and the "
                f"caller {one_line(text) or 'none'}: run one major version of diskless on all "
                "agents"
            )

    def _forget(self, now_s: float, *, keep: int) -> None:
        """Those whose time is over, and the oldest if there are too many."""
        while self._expected:
            nonce, oldest = next(iter(self._expected.items()))
            if oldest.until_s > now_s and len(self._expected) <= keep:
                break
            del self._expected[nonce]
