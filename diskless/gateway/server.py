"""The gateway: an agent's two doors for clients, a Unix socket and a TCP port.

It owns the listening sockets, the connections and the tasks of their requests, and it
answers `hello`, `prove` and `roster` itself; everything else goes to the Backend, if the
visitor has the right to ask for it. It must never let one client hurt another, nor a stranger
any client: those that have not proved themselves are few, the oldest makes room for the next.
A bad frame costs its sender the connection and one line in
the log, and so do replies that it does not fetch; a handler that breaks costs one
InternalError, a handler that hangs is cancelled after `request_timeout_s`. One timer watches
all deadlines, so that a request costs none. What connections hold is bounded for all of them
together, by parts of the agent's memory, to whose account it is charged.
"""

import asyncio
import logging
import os
import socket
import ssl
import stat
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diskless.agent.memory import Memory, Use
from diskless.agent.ticking import left_s
from diskless.config import MIB, Tuning
from diskless.errors import (
    BadFrame,
    DeadlineExceeded,
    DisklessError,
    Forbidden,
    InternalError,
    LaunchFailed,
    Unauthorized,
    Unavailable,
)
from diskless.gateway.backend import Answer, Backend
from diskless.gateway.budget import Budget
from diskless.gateway.connection import (
    UNSENT_BYTES_HIGH,
    Connection,
    Request,
    describe_peer,
)
from diskless.gateway.limits import files_max
from diskless.gateway.lobby import DOOR, STRANGERS_MAX, Lobby
from diskless.gateway.tls import RECEIVED_BYTES, ClientTls
from diskless.identity.arrivals import BACKLOG, Acceptor
from diskless.identity.certificates import Certificates, Pair, server_context
from diskless.identity.handshake import HANDSHAKE_TIMEOUT_S, Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.protocol.frames import NO_LEADER, ROSTER_MASK
from diskless.protocol.messages import Kind

CONNECTION_BYTES = 4 * 1024
"""What an idle connection takes, as measured with 2,000 of them."""
TLS_CONNECTION_BYTES = 160 * 1024
"""The same with TLS, of one that has moved much both ways: OpenSSL keeps its buffers as large as
they once were. Of others 24 KiB were measured."""
CONNECTIONS_SHARE = 1 / 8
REQUESTS_SHARE = 1 / 8
REPLIES_SHARE = 1 / 8
"""Parts of the agent's memory that clients' connections, the bodies of their requests, and
what is made for them and not fetched may take."""
REPLIES_BYTES_MAX = 64 * MIB
FILES_SPARE = 512
"""File descriptors that are kept for everything but clients."""
RECHECK_INTERVAL_S = 1.0
"""How often it is looked whether the tokens of open connections are still good."""
FRAME_TIMEOUT_S = 30.0
"""Silence in the middle of a frame after which its connection is closed."""
LOOK_INTERVAL_S = 1.0
"""How often all connections are looked at for it: they may be ten thousand."""
REPLY_TIMEOUT_S = 30.0
"""The time in which a client must fetch what waits for it, or FETCH_BYTES_MIN of it."""
CROWDED_TIMEOUT_S = 5.0
"""The same while others wait for the room that it takes, or too many are slow."""
SWEEP_INTERVAL_S = 0.1
"""How late a deadline may be noticed; less where the deadlines themselves are short."""
DOZE = 10
"""So many times as long is the pause while nobody waits for an answer: then all that may be due
is the rest of a frame, or a token."""
WITHIN_PART = 0.6
"""Of a client's patience: a refusal must reach it before it takes the agent for dead."""
STOP_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    connections: int = 0
    connections_total: int = 0
    frames_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Gateway:
    """Serves `backend` to clients and admins that `doorkeeper` lets in."""

    def __init__(
        self,
        backend: Backend,
        *,
        doorkeeper: Doorkeeper,
        tuning: Tuning,
        memory: Memory,
        refusals: Refusals | None = None,
        tls: Certificates | None = None,
        connections_max: int | None = None,
        strangers_max: int = STRANGERS_MAX,
        hello_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        frame_timeout_s: float = FRAME_TIMEOUT_S,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """As many connections as memory and open files allow, unless it is told. With `tls`
        the TCP door is encrypted."""

        def room() -> int:
            return memory.room(Use.TRANSIT)

        self.counters = Counters()
        self.errors: Counter[str] = Counter()
        """Requests that were answered with an error, by its reason."""
        self.requests = Budget(memory.part(REQUESTS_SHARE, tuning.gateway_bytes_max), room)
        self.replies = Budget(memory.part(REPLIES_SHARE, REPLIES_BYTES_MAX), room)
        self.parked_bytes = 0
        """Received, and not started yet, on all connections."""
        self.slow: dict[Connection, None] = {}
        """Connections whose clients do not fetch their replies, the slowest first."""
        memory.meter(self._weigh, self._weights)
        self.unix_path = ""
        self.tcp_port = 0
        self._backend = backend
        self.refusals = refusals or Refusals()
        self._tls: ssl.SSLContext | None = None
        self._authority = b""
        self._received = memoryview(bytearray(RECEIVED_BYTES if tls else 0))
        if tls is not None:
            self._authority = tls.authority
            self._use_certificate(tls.pair)
            tls.on_renewal(self._use_certificate)
        self._connection_bytes = CONNECTION_BYTES if tls is None else TLS_CONNECTION_BYTES
        visitors_max = connections_max or min(
            int(CONNECTIONS_SHARE * memory.bytes_max / self._connection_bytes),
            files_max() - FILES_SPARE - strangers_max,
        )
        self.lobby = Lobby(
            doorkeeper,
            strangers_max=strangers_max,
            visitors_max=visitors_max,
            timeout_s=hello_timeout_s,
        )
        self._reply_timeout_s = reply_timeout_s
        self._frame_timeout_s = frame_timeout_s
        self._request_timeout_s = tuning.request_timeout_s
        self._sweep_interval_s = min(
            SWEEP_INTERVAL_S,
            tuning.request_timeout_s / 4,
            hello_timeout_s / 4,
            frame_timeout_s / 4,
            reply_timeout_s / 4,
        )
        self._look_interval_s = min(LOOK_INTERVAL_S, frame_timeout_s / 4)
        self._connections: set[Connection] = set()
        self._rechecked_at = self._looked_at = 0.0
        self._started: set[Request] = set()
        self._servers: list[asyncio.Server] = []
        self._acceptor: Acceptor | None = None
        self._inode = 0
        self._stopping = False
        self._all_gone = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None
        self._dozing = False

    @property
    def requests_in_flight(self) -> int:
        return len(self._started)

    def _weigh(self) -> dict[str, int]:
        requests, replies = self.requests, self.replies
        return {
            "connections": self._connection_bytes * len(self._connections),
            "requests": requests.reserved + requests.reserved_small + self.parked_bytes,
            "replies": replies.reserved + UNSENT_BYTES_HIGH * len(self.slow),
        }

    def _weights(self) -> tuple[int, int]:
        """What `_weigh` tells in two numbers: what lasts, and what passes."""
        requests, replies = self.requests, self.replies
        return 0, (
            self._connection_bytes * len(self._connections)
            + requests.reserved
            + requests.reserved_small
            + self.parked_bytes
            + replies.reserved
            + UNSENT_BYTES_HIGH * len(self.slow)
        )

    async def start(self, unix_path: str, tcp_host: str, tcp_port: int = 0) -> None:
        """Opens both doors; `tcp_port` then holds the port, the given one if it is free.

        Raises LaunchFailed.
        """
        loop = asyncio.get_running_loop()
        try:
            listener = _listen_unix(Path(unix_path))
            self.unix_path, self._inode = unix_path, os.stat(unix_path).st_ino
            self._servers.append(
                await loop.create_unix_server(self._accept, sock=listener, backlog=BACKLOG)
            )
            self.tcp_port = self._listen_tcp(tcp_host, tcp_port)
        except OSError as error:
            await self.stop()
            raise LaunchFailed(
                f"gateway on {unix_path} and {tcp_host}:{tcp_port}: {error}"
            ) from error
        self._sweeper = loop.call_later(self._sweep_interval_s, self._sweep)
        log.info("gateway opened socket=%s tcp=%s:%d", unix_path, tcp_host, self.tcp_port)

    def _listen_tcp(self, host: str, port: int) -> int:
        self._acceptor = Acceptor(self._accept_tcp, on_refused=self._refuse_crowd)
        self.lobby.arrivals = self._acceptor.arrivals
        try:
            return self._acceptor.start(host, port)
        except OSError:
            if not port:
                raise
            return self._acceptor.start(host)

    def _refuse_crowd(self, peer: str) -> None:
        crowd = Unauthorized("too many from there have proved nothing", why="too many callers")
        self.refusals.note(DOOR, crowd, peer)

    def _use_certificate(self, pair: Pair) -> None:
        """From the next connection on; those that are open have theirs."""
        context = server_context(pair, self._authority, callers_have_certificates=False)
        context.num_tickets = 0  # a client's next connection does a full handshake anyway
        self._tls = context

    async def stop(self) -> None:
        """Closes the doors and all connections; requests in flight are refused. Idempotent."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        if self._acceptor is not None:
            self._acceptor.close()
        await asyncio.sleep(0)  # One that is cancelled before it has begun would refuse nothing.
        tasks = [request.task for request in self._started if request.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        for connection in list(self._connections):
            connection.close()
        await self._wait_for_connections()
        self._servers.clear()
        self._remove_socket()

    async def _wait_for_connections(self) -> None:
        if self._connections:
            self._all_gone.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), STOP_TIMEOUT_S)
        for connection in list(self._connections):
            connection.abort()

    def _remove_socket(self) -> None:
        """Only our own: a successor may have put its socket in the same place."""
        with suppress(FileNotFoundError):
            if self.unix_path and os.stat(self.unix_path).st_ino == self._inode:
                os.unlink(self.unix_path)
        self.unix_path = ""

    # What connections call.

    def _accept(self) -> Connection:
        self.counters.connections_total += 1
        return Connection(self, self.counters.connections_total)

    def _accept_tcp(self) -> Connection | ClientTls:
        connection = self._accept()
        return ClientTls(connection, self._tls, self._received) if self._tls else connection

    def connection_made(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.counters.connections = len(self._connections)
        self.lobby.opened(connection)
        if self._dozing:
            self._sweep_soon()

    def connection_lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.lobby.lost(connection)
        self.counters.connections = len(self._connections)
        if not self._connections:
            self._all_gone.set()
        if connection.visitor is not None:
            self._backend.disconnected(connection.number)

    def recheck(self) -> None:
        """Ends the connections of those whose token has expired or was revoked. It happens by
        itself, a little later."""
        self.lobby.recheck(self._connections)

    def view(self) -> tuple[int, int]:
        """The leader and the roster's version, as a reply's header carries them."""
        leader = self._backend.leader()
        version = self._backend.roster_version() & ROSTER_MASK
        return (NO_LEADER if leader is None else leader), version

    def start_request(self, request: Request) -> None:
        """Answers at once if the answer is ready, else lets a task do it."""
        try:
            answer = self._dispatch(request)
            if not isinstance(answer, tuple):
                self._begin(request, answer)
                return
            request.connection.reply(request, *answer)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a handler raises
            request.connection.refuse(request.number, self._refusal(request, error))
            visitor = request.connection.visitor
            if visitor is not None and visitor.unwelcome:
                request.connection.hang_up()
        self.requests.release(request.body_bytes)
        request.connection.answered(request)

    def _dispatch(self, request: Request) -> Answer | Awaitable[Answer]:
        if self._stopping:
            raise Unavailable("the agent is stopping")
        visitor = request.connection.visitor
        if visitor is None:
            return request.connection.challenged(), ()
        if request.kind is Kind.PROVE:
            return self._backend.welcome(), ()
        if request.kind is Kind.ROSTER:
            return self._backend.roster(), ()
        visitor.rights.check(request.kind, request.meta)
        return self._backend.handle(visitor, request.kind, request.meta, request.payload)

    def _refusal(self, request: Request, error: Exception) -> DisklessError:
        if isinstance(error, Forbidden):
            self.refusals.note(DOOR, error, describe_peer(request.connection.transport))
        if isinstance(error, DisklessError):
            self.errors[error.reason] += 1
            return error
        self.errors[InternalError.__name__] += 1
        log.error("request failed kind=%s", request.kind.name, exc_info=error)
        return InternalError(f"{request.kind.name.lower()}: {type(error).__name__}: {error}")

    def _begin(self, request: Request, pending: Awaitable[Answer]) -> None:
        loop = asyncio.get_running_loop()
        patience_s = request.within_s * WITHIN_PART or self._request_timeout_s
        request.deadline = loop.time() + min(patience_s, self._request_timeout_s)
        self._started.add(request)
        if self._dozing:
            self._sweep_soon()
        request.connection.begun(request)
        request.task = loop.create_task(self._finish(request, pending))

    async def _finish(self, request: Request, pending: Awaitable[Answer]) -> None:
        connection = request.connection
        request.running = True
        try:
            meta, parts = await pending
            connection.reply(request, meta, parts)
        except asyncio.CancelledError:
            interruption = self._interruption(request)
            self.errors[interruption.reason] += 1
            connection.refuse(request.number, interruption)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a handler raises
            connection.refuse(request.number, self._refusal(request, error))
        finally:
            self._started.discard(request)
            self.requests.release(request.body_bytes)
            connection.ended(request)

    def _interruption(self, request: Request) -> DisklessError:
        if not request.expired:
            return Unavailable("the agent is stopping")
        what = request.kind.name.lower()
        if request.within_s:
            return self._backend.hindrance() or Unavailable(f"{what}: no answer yet, ask again")
        return DeadlineExceeded(f"{what}: the agent gave up after {self._request_timeout_s} s")

    # Deadlines.

    def _end_slow(self, now: float) -> None:
        """Closes connections that do not fetch their replies in time, which is short while
        others wait for that room, or they are so many that they would fill the memory."""
        for connection in list(self.slow):
            crowded = self.replies.waiting or (
                UNSENT_BYTES_HIGH * len(self.slow) > self.replies.bytes_max
            )
            timeout_s = CROWDED_TIMEOUT_S if crowded else self._reply_timeout_s
            if connection.is_slow(now, reply_timeout_s=min(timeout_s, self._reply_timeout_s)):
                self.slow.pop(connection, None)
                connection.give_up()

    def _end_silent(self, now: float) -> None:
        for connection in list(self._connections):
            if connection.is_silent(now, frame_timeout_s=self._frame_timeout_s):
                connection.refuse_and_close(BadFrame("the rest of a frame did not come in time"))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for request in self._started:
            if request.running and not request.expired and now >= request.deadline:
                assert request.task is not None
                request.expired = True
                request.task.cancel()
        self.lobby.end_late(now)
        if now - self._looked_at >= self._look_interval_s:
            self._looked_at = now
            self._end_silent(now)
        self._end_slow(now)
        if now - self._rechecked_at > RECHECK_INTERVAL_S:
            self._rechecked_at = now
            self.recheck()
        self._dozing = not (self._started or self.lobby.strangers or self.slow)
        pause_s = self._sweep_interval_s * (DOZE if self._dozing else 1)
        self._sweeper = loop.call_later(left_s(pause_s, time.monotonic()), self._sweep)

    def _sweep_soon(self) -> None:
        """There is something to watch again."""
        self._dozing = False
        if self._sweeper is not None:
            self._sweeper.cancel()
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(self._sweep_interval_s, self._sweep)


def _listen_unix(path: Path) -> socket.socket:
    """A listening socket that only this user can reach, in place of any stale one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path.parent, 0o700)
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
