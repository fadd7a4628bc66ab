"""The answering side: an agent's gRPC door, closed to all but agents of the cluster."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from diskless.agent.notebook import NotesCall
from diskless.agent.ports import Beat, Pulse
from diskless.agent.shards import ShardStore
from diskless.errors import BadRequest, DisklessError, Unauthorized
from diskless.identity.handshake import HANDSHAKE_TIMEOUT_S, Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.model import (
    format_address,
)
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.rpc.beats import decode_beat, encode_pulse
from diskless.rpc.bouncer import Bouncer
from diskless.rpc.exchange import Handler, Item, answer_at_once, serve
from diskless.rpc.introduction import (
    CHALLENGE_KEY,
    DOOR,
    WELCOME_KEY,
    Guest,
    Introductions,
)
from diskless.rpc.lane import LaneDoor, Voter
from diskless.rpc.services import (
    KNOCK_METHOD,
    LANE_KEY,
    MEMBERSHIP,
    MESSAGE_BYTES_MAX,
    NAMESPACE,
    REPLICA_METHOD,
    SHARDS,
    VOTER_BATCH,
    Service,
)
from diskless.rpc.shards import Chunks, Rebuilds, ShardService, Uploads
from diskless.rpc.tls import Tls
from diskless.rpc.v1 import namespace_pb2

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 4096
"""Of agents and of strangers. Each takes some 20 KiB, and an agent has four to each other. Of
strangers there are far fewer for more than a moment (`rpc.bouncer`)."""
STREAMS_MAX = 32
"""At once on one connection, knocks among them; an agent has four, and one knock for each. A
stranger's further ones are refused before they cost the event loop anything."""
_HANDSHAKE_MS = int(1000 * HANDSHAKE_TIMEOUT_S)
SERVER_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    # A stranger's connection: until it speaks TLS and HTTP/2, and then without any stream. An
    # agent's has one as long as it is of use, and opens again if it has not.
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _HANDSHAKE_MS),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", STREAMS_MAX),
)

_decode_notes = msgspec.msgpack.Decoder(NotesCall).decode


class Namespace(Protocol):
    """The namespace as this agent serves it to others. Raises NotLeader if it cannot."""

    async def execute(self, command: c.Command) -> tuple[c.Result, ...]: ...
    async def query(self, query: q.Query) -> Any: ...


class Member(Protocol):
    """The agent as the leader sees it."""

    def pulse(self, beat: Beat) -> Pulse: ...


class Notes(Protocol):
    """What this agent has of Spark's notes."""

    def answer(self, call: NotesCall) -> Any: ...


def _handler(path: str, run: Any) -> grpc.GenericRpcHandler:
    name, method = path.removeprefix("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(run)
    return grpc.method_handlers_generic_handler(name, {method: handler})


class AgentServer:
    """Serves the shards, the namespace and the membership of one agent."""

    def __init__(
        self,
        *,
        slot: int,
        doorkeeper: Doorkeeper,
        refusals: Refusals,
        tls: Tls | None = None,
        shards: ShardStore,
        rebuilds: Rebuilds,
        uploader: Uploads,
        cold: Chunks,
        namespace: Namespace,
        member: Member,
        voter: Voter,
        notes: Notes,
    ) -> None:
        self._voter = voter
        self._notes = notes
        self._refusals = refusals
        self._tls = tls
        self._shards = ShardService(shards=shards, rebuilds=rebuilds, uploader=uploader, cold=cold)
        self._namespace = namespace
        self._member = member
        self._server: grpc.aio.Server | None = None
        self._introductions = Introductions(
            doorkeeper, slot=slot, now_s=lambda: asyncio.get_running_loop().time()
        )
        self._lanes = LaneDoor(
            slot=slot,
            doorkeeper=doorkeeper,
            voter=voter,
            refusals=refusals,
            tls=tls,
            services={MEMBERSHIP.method: self._answer_beats},
        )
        self.lane_port = 0
        self._bouncer = Bouncer(
            refusals, begun=(lambda: tls.calls_begun) if tls is not None else None
        )

    async def start(self, host: str, port: int = 0) -> str:
        """Listens and returns host:port."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers(
            (
                _handler(KNOCK_METHOD, self._answer_knock),
                self._exchange(SHARDS, self._shards.answer),
                self._exchange(NAMESPACE, self._on_namespace),
                self._exchange(MEMBERSHIP, self._on_beat),
                _handler(REPLICA_METHOD, self._receive_votes),
            )
        )
        self.lane_port = await self._lanes.start(host)
        if self._tls is None:
            bound = server.add_insecure_port(format_address(host, port))
        else:
            credentials = self._tls.server_credentials()
            bound = server.add_secure_port(format_address(host, port), credentials)
        self._introductions.address = format_address(host, bound)
        await server.start()
        self._bouncer.start(bound)
        self._server = server
        return self._introductions.address

    async def stop(self, grace_s: float | None = None) -> None:
        self._lanes.stop()
        self._bouncer.stop()
        if self._server is not None:
            await self._server.stop(grace_s)

    def _exchange(self, service: Service, handle: Handler) -> grpc.GenericRpcHandler:
        async def run(requests: Any, context: grpc.aio.ServicerContext) -> None:
            lane = [self._lane] if service is MEMBERSHIP else []
            async with self._admitted(context, service.method, *lane):
                await serve(
                    requests,
                    context,
                    split=service.calls.split,
                    join=service.answers.join,
                    handle=handle,
                    refuse=service.refuse,
                )

        return _handler(service.method, run)

    @property
    def _lane(self) -> tuple[str, str]:
        return LANE_KEY, str(self.lane_port)

    async def _receive_votes(self, requests: Any, context: grpc.aio.ServicerContext) -> None:
        """Hands the messages of one other voter to this one; nothing is answered."""
        async with self._admitted(context, REPLICA_METHOD, self._lane) as voter:
            try:
                async for data in requests:
                    for message, _ in VOTER_BATCH.split(data):
                        self._voter.receive(voter.sender, voter.address, message)
            except ValueError as error:  # BadFrame is a ValueError
                log.warning("malformed votes peer=%s error=%s", context.peer(), error)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed: {error}")

    async def _answer_knock(self, _: Any, context: grpc.aio.ServicerContext) -> None:
        self._bouncer.heard(context.peer())
        given = dict(context.invocation_metadata() or ())
        try:
            challenge = self._introductions.challenge(given)
        except DisklessError as error:
            await self._refuse(context, error)
        else:
            context.set_trailing_metadata(((CHALLENGE_KEY, challenge),))

    @asynccontextmanager
    async def _admitted(
        self, context: grpc.aio.ServicerContext, method: str, *more: tuple[str, str]
    ) -> AsyncIterator[Guest]:
        """An agent, as long as its stream lives."""
        peer = context.peer()
        self._bouncer.heard(peer)
        guest = await self._admit(context, method, *more)
        self._bouncer.welcome(peer)
        try:
            yield guest
        finally:
            self._bouncer.leave(peer)

    async def _admit(
        self, context: grpc.aio.ServicerContext, method: str, *more: tuple[str, str]
    ) -> Guest:
        """Welcomes an agent, and aborts the stream of anybody else before it is read."""
        given = dict(context.invocation_metadata() or ())
        try:
            guest = self._introductions.admit(method, given)
        except DisklessError as error:
            await self._refuse(context, error)
            raise
        await context.send_initial_metadata(((WELCOME_KEY, guest.welcome), *more))
        return guest

    async def _refuse(self, context: grpc.aio.ServicerContext, error: DisklessError) -> None:
        """Raises what ends the call."""
        self._refusals.note(DOOR, error, context.peer())
        stranger = isinstance(error, Unauthorized)
        code = grpc.StatusCode.UNAUTHENTICATED if stranger else grpc.StatusCode.FAILED_PRECONDITION
        await context.abort(code, str(error))

    def _on_namespace(self, call: Any, _: memoryview) -> Awaitable[Item]:
        return self._answer_namespace(call)

    async def _answer_namespace(self, call: Any) -> Item:
        try:
            match call.WhichOneof("call"):
                case "command":
                    results = await self._namespace.execute(c.decode(call.command))
                    result = c.encode(results)
                case "query":
                    result = q.encode(await self._namespace.query(q.decode(call.query)))
                case "notes":
                    result = q.encode(self._notes.answer(_decode_notes(call.notes)))
                case _:
                    raise BadRequest("this agent does not know that call")
        except msgspec.DecodeError as error:
            raise BadRequest(f"malformed command or query: {error}") from None
        return namespace_pb2.NamespaceAnswer(result=result), None

    def _answer_beats(self, data: bytes) -> bytes:
        return answer_at_once(
            data,
            split=MEMBERSHIP.calls.split,
            join=MEMBERSHIP.answers.join,
            handle=self._on_beat,
            refuse=MEMBERSHIP.refuse,
        )

    def _on_beat(self, call: Any, _: memoryview) -> Item:
        pulse = self._member.pulse(decode_beat(call))
        return encode_pulse(pulse, known_version=call.memory_version), None
