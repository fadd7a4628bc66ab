"""Requests that survive agents: connections, retries, failover, and the client's session.

It owns the pool of idle connections, the roster and the session. Threads share a Caller;
a connection is with one thread at a time and comes back only with nothing under way.
A mutation keeps its (session, sequence) over all its attempts, so that it happens once;
it gets a new pair only if it was never sent under the old one. A forked child starts afresh:
it shares neither connections nor the session.
"""

import itertools
import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from diskless.client import descriptor as descriptors
from diskless.client.attempts import Attempts
from diskless.client.connection import Buffer, Connection, Reply
from diskless.client.descriptor import Descriptor
from diskless.client.greeting import Greeter
from diskless.client.routes import Routes, address
from diskless.errors import (
    RESTORED,
    BadRequest,
    DisklessError,
    NoCluster,
    NotLeader,
    Restored,
    SessionExpired,
    Unauthorized,
    Unavailable,
)
from diskless.protocol.messages import Empty, Kind, OpenSession, Peer
from diskless.protocol.requests import Mutation

HINDRANCES = (Unavailable, NotLeader)
"""With these a healthy agent says that it cannot reach one that could help: another may."""
IDLE_MAX = 8
"""Idle connections kept to each agent."""
SEQUENCES_MAX = 384
"""Agents remember the answers to a session's last 512 numbers. All threads share a session:
before one that repeats its mutation for long falls behind that, others get a new session."""
FRESH_S = 1.0
"""A connection idle for longer is looked at before it is used again."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Ticket:
    """What makes a mutation happen once: its numbers, and how often it may have been sent."""

    session: int
    sequence: int
    sent: int = 0

    def stamp(self, meta: Mutation) -> None:
        meta.session, meta.sequence = self.session, self.sequence


class Caller:
    def __init__(
        self, descriptor: Descriptor, *, timeout_s: float, greeter: Greeter | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self.closed = False
        self._descriptor = descriptor
        self._greeter = greeter or Greeter(descriptor)
        self._cluster = self._greeter.cluster
        self._epoch: int | None = None
        """That the first agent was in; in a later one nothing is as we know it."""
        self._is_restored = False
        self._begin()
        _callers.add(self)

    def _begin(self) -> None:
        self._label = f"{socket.gethostname()}:{os.getpid()}"
        self.application = f"{self._label} {secrets.token_hex(4)}"
        """Whose leases on checkpoints this client shares; empty: it has no part in them."""
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._session_lock = threading.Lock()
        self._session: int | None = None
        self._sequence = 0
        self._tickets: deque[weakref.ref[Ticket]] = deque()
        self._idle: dict[str, list[Connection]] = {}
        self._routes = Routes(self._descriptor.gateways, salt=secrets.token_hex(4))
        self._strangers: dict[str, Unauthorized] = {}
        """By address, those that did not prove to be agents when they were last asked."""

    def attempts(self, what: str) -> Attempts:
        return Attempts(what, timeout_s=self.timeout_s)

    # Requests.

    def call(
        self,
        kind: Kind,
        meta: Struct,
        parts: Sequence[Buffer] = (),
        *,
        what: str,
        bulk: bool = False,
    ) -> Reply:
        """The reply to a request that is safe to repeat; its `error` is None.

        Raises the refusal if it is final, DeadlineExceeded if no attempt succeeded.
        """
        return self._call(kind, meta, parts, self.attempts(what), bulk=bulk)

    def mutate(
        self,
        kind: Kind,
        meta: Mutation,
        parts: Sequence[Buffer] = (),
        *,
        what: str,
        bulk: bool = False,
    ) -> Reply:
        """As `call`, for a mutation: it happens once, however often it is sent."""
        attempts = self.attempts(what)
        ticket = self.ticket(attempts)
        while True:
            ticket.stamp(meta)
            try:
                reply = self._exchange(kind, meta, parts, attempts, bulk=bulk, ticket=ticket)
            except Unavailable as error:
                attempts.failed(error)
                continue
            if reply.error is None:
                return reply
            self.reconsider(reply.error, ticket, attempts)

    def ticket(self, attempts: Attempts) -> Ticket:
        """The numbers of a new mutation."""
        with self._session_lock:
            if self._session is None or self._is_crowded():
                meta = OpenSession(self.application)
                reply = self._call(Kind.SESSION, meta, (), attempts)
                self._session, self._sequence = int(reply.meta.session), 0
                self._tickets.clear()
            self._sequence += 1
            ticket = Ticket(self._session, self._sequence)
            self._tickets.append(weakref.ref(ticket))
            return ticket

    def reconsider(self, error: DisklessError, ticket: Ticket, attempts: Attempts) -> None:
        """Returns if a refused mutation may be sent again, after a pause; else raises."""
        if isinstance(error, SessionExpired) and ticket.sent == 1:
            # Refused at its first and only sending, so it surely has not happened. `sent`
            # keeps counting: a second time is raised.
            self._forget_session(ticket.session)
            fresh = self.ticket(attempts)
            ticket.session, ticket.sequence = fresh.session, fresh.sequence
            with self._session_lock:  # its number is under way for as long as this one is
                self._tickets.append(weakref.ref(ticket))
        elif not error.retryable:
            raise error
        attempts.failed(error)

    def _call(
        self,
        kind: Kind,
        meta: Struct,
        parts: Sequence[Buffer],
        attempts: Attempts,
        *,
        bulk: bool = False,
    ) -> Reply:
        while True:
            try:
                reply = self._exchange(kind, meta, parts, attempts, bulk=bulk)
            except Unavailable as error:
                attempts.failed(error)
                continue
            if reply.error is None:
                return reply
            if not reply.error.retryable:
                raise reply.error
            attempts.failed(reply.error)

    def _exchange(
        self,
        kind: Kind,
        meta: Struct,
        parts: Sequence[Buffer],
        attempts: Attempts,
        *,
        bulk: bool,
        ticket: Ticket | None = None,
    ) -> Reply:
        connection = self.take(bulk=bulk, deadline=attempts.deadline)
        if ticket is not None:
            ticket.sent += 1
        try:
            reply = connection.request(kind, meta, parts, deadline=attempts.deadline)
        except Unavailable:
            self.drop(connection)
            raise
        if reply.error is None:
            self.give_back(connection)
        else:
            self.refused(connection, reply.error)
        return reply

    def _is_crowded(self) -> bool:
        """Whether the oldest ticket in use is far behind the newest."""
        while self._tickets:
            oldest = self._tickets[0]()
            if oldest is not None:
                return self._sequence - oldest.sequence >= SEQUENCES_MAX
            self._tickets.popleft()
        return False

    def _forget_session(self, session: int) -> None:
        with self._session_lock:
            if self._session == session:
                self._session = None

    # Connections.

    def take(self, *, bulk: bool, deadline: float) -> Connection:
        """A connection for this thread alone. Raises Unavailable, Unauthorized, NoCluster.

        Give it back with `give_back`, or `drop` it if it broke.
        """
        if self.closed:
            raise ValueError("the client is closed")
        if self._is_restored:
            raise Restored(RESTORED)
        now = time.monotonic()
        if self._routes.all_failed():
            self._reread_descriptor()
        connection = self._connect(self._routes.pick(bulk=bulk, now=now), deadline)
        if self._routes.is_outdated(now):
            self._refresh(connection, deadline)
        return connection

    def give_back(self, connection: Connection, *, reuse: bool = True) -> None:
        """For others to use, or to be closed. Whatever its replies told about the cluster is
        learned."""
        self._routes.learn(leader=connection.leader, version=connection.roster)
        self._routes.worked(connection.peer)
        self._strangers.pop(address(connection.peer), None)
        if reuse and connection.usable and not connection.outstanding and not self.closed:
            connection.idle_since = time.monotonic()
            with self._lock:
                idle = self._idle.setdefault(address(connection.peer), [])
                if len(idle) < IDLE_MAX:
                    idle.append(connection)
                    return
        connection.close()

    def refused(self, connection: Connection, error: DisklessError, *, reuse: bool = True) -> None:
        """A request on this connection failed. While it is usable its agent has answered, and is
        well: then it is passed over for a moment at most."""
        if not connection.usable:
            self.drop(connection)
            return
        self.give_back(connection, reuse=reuse)
        if isinstance(error, HINDRANCES):
            self._routes.hindered(connection.peer, time.monotonic())

    def drop(self, connection: Connection) -> None:
        """This connection broke: others to the same agent are suspect, and so is the agent."""
        connection.close()
        self._routes.failed(connection.peer, time.monotonic())
        with self._lock:
            suspects = self._idle.pop(address(connection.peer), [])
        for suspect in suspects:
            suspect.close()

    def close(self) -> None:
        self.closed = True
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in itertools.chain.from_iterable(idle.values()):
            connection.close()

    def _connect(self, peer: Peer, deadline: float) -> Connection:
        idle = self._pop_idle(peer)
        if idle is not None:
            return idle
        try:
            connection = self._greeter.connect(peer, client=self._label, deadline=deadline)
        except (Unavailable, Unauthorized) as error:
            self._routes.failed(peer, time.monotonic())
            self._doubt(peer, error)
            if isinstance(error, Unauthorized):  # Another may be an agent.
                raise Unavailable(str(error)) from error
            raise
        self._strangers.pop(address(peer), None)
        welcome = connection.welcome
        assert welcome is not None
        self._check_epoch(welcome.epoch, connection)
        if not self._routes.has_roster:
            self._routes.replace(welcome.agents, version=connection.roster, now=time.monotonic())
        self._routes.learn(leader=connection.leader, version=connection.roster)
        return connection

    def _check_epoch(self, epoch: int, connection: Connection) -> None:
        """Raises Restored, now and for good, if the cluster has lost all its memory since we first
        met it."""
        if self._epoch is None:
            self._epoch = epoch
        elif self._epoch != epoch:
            self._is_restored = True
            connection.close()
            raise Restored(RESTORED)

    def _doubt(self, peer: Peer, error: DisklessError) -> None:
        """Raises Unauthorized if nobody is left that might prove to be an agent. Until then who
        refuses us may be a stranger on a dead agent's port, whose word is nothing."""
        if isinstance(error, Unauthorized):
            self._strangers[address(peer)] = error
        else:
            self._strangers.pop(address(peer), None)
        told = dict(self._strangers)  # other threads hear of agents, too
        if told and self._routes.no_agent_left(told):
            raise list(told.values())[-1]

    def _pop_idle(self, peer: Peer) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(address(peer))
                if not idle:
                    return None
                connection = idle.pop()
            if time.monotonic() - connection.idle_since < FRESH_S or not connection.is_stale():
                return connection
            connection.close()

    def _refresh(self, connection: Connection, deadline: float) -> None:
        """Asks for the roster; one thread at a time, the others continue with the old one."""
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            reply = connection.request(Kind.ROSTER, Empty(), deadline=deadline)
        except Unavailable:
            self.drop(connection)
            raise
        finally:
            self._refreshing.release()
        if reply.error is None:
            self._routes.replace(reply.meta.agents, version=connection.roster, now=time.monotonic())
            self._forget_departed()

    def _forget_departed(self) -> None:
        """Closes idle connections to addresses that are no agent's any more."""
        known = {address(peer) for peer in self._routes.peers}
        with self._lock:
            departed = [self._idle.pop(key) for key in list(self._idle) if key not in known]
        for connection in itertools.chain.from_iterable(departed):
            connection.close()

    def _reread_descriptor(self) -> None:
        """Every agent we know of failed: perhaps all have been restarted elsewhere.

        Raises NoCluster if the name has come to mean another cluster: ours is gone then.
        """
        try:
            found = descriptors.load(self._descriptor.name)
        except (NoCluster, BadRequest):  # BadRequest: it was given as HOST:PORT
            return
        if found.cluster == self._cluster:
            self._routes.add(found.gateways)
        elif found.cluster:
            raise NoCluster(
                f"cluster {found.name} was replaced: {self._cluster} does not answer, "
                f"the name means {found.cluster} now; connect again"
            )


_callers: weakref.WeakSet[Caller] = weakref.WeakSet()


def _begin_all_anew() -> None:
    for caller in list(_callers):
        caller._begin()


os.register_at_fork(after_in_child=_begin_all_anew)
