"""What each client request means: from frames to the agent's parts and back.

Requests of one concern have their handlers in a module beside this one. Questions to the namespace
go through the router, which answers them on the spot where this agent leads; everything else waits
for other agents and is a coroutine. Nothing here keeps state of its own.
"""

from collections.abc import Awaitable
from typing import cast

from msgspec import Struct

from diskless.agent.cold import ColdReader
from diskless.agent.counts import Traffic
from diskless.agent.faults import Faults
from diskless.agent.hits import Hits
from diskless.agent.notebook import Notebook
from diskless.agent.packer import Packer
from diskless.agent.reader import Reader
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.shards import ShardStore
from diskless.agent.uploads import Uploads
from diskless.config import ClusterSettings
from diskless.errors import DisklessError, Forbidden, TooFewAgents, Unavailable
from diskless.gateway.backend import Answer, Buffer, ConnectionId, Handlers, PersonalHandlers
from diskless.gateway.batch import BatchHandlers
from diskless.gateway.certificate import CertificateHandlers
from diskless.gateway.faults import FaultHandlers
from diskless.gateway.history import HistoryHandlers
from diskless.gateway.marks import Marks
from diskless.gateway.notes import NoteHandlers
from diskless.gateway.reads import ReadHandlers
from diskless.gateway.tier import TierHandlers
from diskless.gateway.tokens import TokenHandlers
from diskless.gateway.tree import TreeHandlers
from diskless.gateway.visitor import Visitor
from diskless.gateway.writes import WriteHandlers
from diskless.identity.certificates import Certificates
from diskless.model import slot_name
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.lookback import Events
from diskless.protocol import messages as m
from diskless.protocol import operating, requests
from diskless.protocol.messages import Kind

_MUTATIONS = frozenset(
    kind for kind, request in requests.REQUESTS.items() if issubclass(request, requests.Mutation)
)
_UNCOUNTED = frozenset(
    (Kind.STATUS, Kind.EVENTS, Kind.FAULTS, Kind.FLUSH, Kind.NOTE_BATCHES, Kind.BATCH_NOTES)
)


class ClientHandlers:
    """The gateway's backend: one agent, as its clients see it."""

    def __init__(
        self,
        *,
        settings: ClusterSettings,
        cluster_id: str,
        roster: Roster,
        namespace: Router,
        packer: Packer,
        reader: Reader,
        cold: ColdReader,
        hits: Hits,
        uploads: Uploads,
        faults: Faults,
        shards: ShardStore,
        marks: Marks,
        notebook: Notebook,
        epoch: int = 0,
        tls: Certificates | None = None,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._namespace = namespace
        self._marks = marks
        self._epoch = epoch
        self.requests = 0
        """Of clients at work; those of onlookers are not counted."""
        self.traffic = Traffic()
        self._writes = WriteHandlers(
            packer=packer, uploads=uploads, marks=marks, traffic=self.traffic
        )
        reads = ReadHandlers(
            settings=settings,
            roster=roster,
            namespace=namespace,
            reader=reader,
            cold=cold,
            hits=hits,
            marks=marks,
            traffic=self.traffic,
        )
        faulty = FaultHandlers(faults, shards, slot=roster.slot, armed=settings.chaos)
        parts = (
            self._writes,
            TreeHandlers(namespace),
            HistoryHandlers(namespace),
            TokenHandlers(namespace, cluster_id=cluster_id),
            TierHandlers(namespace),
        )
        self._handlers: Handlers = {
            Kind.STATUS: self._status,
            Kind.RENEW: CertificateHandlers(tls).renew,
            Kind.FAULTS: faulty.plant,
            **NoteHandlers(notebook).handlers,
        }
        self._personal: PersonalHandlers = {
            Kind.SESSION: self._session,
            Kind.EVENTS: self._events,
            Kind.DRAIN: self._drain,
            Kind.OPEN_MANY: BatchHandlers(namespace, reader).open_many,
            **reads.personal,
        }
        """Those that depend on who asks."""
        for part in parts:
            self._handlers |= part.handlers
            self._personal |= part.personal

    # -- what the gateway asks --------------------------------------------------

    def leader(self) -> int | None:
        return self._roster.leader

    def hindrance(self) -> DisklessError | None:
        return self._namespace.hindrance()

    def roster_version(self) -> int:
        return max(self._roster.version, 0)

    def roster(self) -> m.Roster:
        return m.Roster(
            [
                m.Peer(agent.slot, agent.gateway, agent.socket, agent.host, agent.up, agent.slow)
                for agent in self._roster.agents.values()
            ]
        )

    def welcome(self) -> m.Welcome:
        return m.Welcome(self.roster().agents, self._epoch)

    def handle(
        self, visitor: Visitor, kind: Kind, meta: Struct, payload: bytes | memoryview
    ) -> Answer | Awaitable[Answer]:
        if self._roster.version < 0 and kind is not Kind.FAULTS:
            # It would take the others for dead, and say so to the client.
            raise Unavailable(f"{slot_name(self._roster.slot)} has not joined the cluster yet")
        self.requests += kind not in _UNCOUNTED
        if kind in _MUTATIONS:
            self._recognize(visitor, cast(requests.Mutation, meta))
        handler = self._handlers.get(kind)
        if handler is not None:
            return handler(meta, payload)
        return self._personal[kind](visitor, meta, payload)

    def _recognize(self, visitor: Visitor, meta: requests.Mutation) -> None:
        """Makes of the number that a client has for its session the namespace's own. Whoever
        used another's could have its own answers taken for the other's. Raises Forbidden."""
        if meta.session != visitor.session:
            try:
                visitor.session_count = self._marks.session_count(visitor.principal, meta.session)
            except Forbidden:
                visitor.unwelcome = True  # the next guess costs a connection
                raise
            visitor.session = meta.session
        meta.session = visitor.session_count

    def disconnected(self, connection: ConnectionId) -> None:
        self._writes.disconnected(connection)

    # -- the cluster ------------------------------------------------------------

    def _status(self, meta: m.Empty, _: Buffer) -> Answer | Awaitable[Answer]:
        return self._namespace.ask(q.Report(), lambda report: (report, ()))

    async def _events(self, visitor: Visitor, meta: operating.Events, _: Buffer) -> Answer:
        query = Events(
            meta.after,
            meta.limit,
            meta.who,
            meta.path,
            meta.since_ms,
            meta.before,
            within=visitor.principal.claims.paths if visitor.rights.bound else (),
            kinds=tuple(meta.kinds),
        )
        found = await self._namespace.query(query)
        # Who sees only a part would take what it does not see for what did not happen.
        oldest_ms = 0 if query.within else found.oldest_ms
        return operating.EventPage(found.events, found.before, oldest_ms), ()

    async def _drain(self, visitor: Visitor, meta: operating.Drain, _: Buffer) -> Answer:
        if not meta.undo:
            self._check_drain(meta.slot)
        done = await self._namespace.run(c.Drain(meta.slot, not meta.undo, visitor.principal.name))
        return operating.Drained(done.changed), ()

    def _check_drain(self, slot: int) -> None:
        """Raises TooFewAgents if writes would have to be refused without that agent."""
        needed = self._settings.parity_shards + 1
        left = sum(agent.slot != slot for agent in self._roster.takers())
        if left < needed:
            raise TooFewAgents(
                f"without {slot_name(slot)} {left} agents would be left to write to, and a "
                f"write needs {needed}: bring others back, or end their draining, first"
            )

    async def _session(self, visitor: Visitor, meta: m.OpenSession, _: Buffer) -> Answer:
        command = c.OpenSession(visitor.principal.name, meta.application)
        done = await self._namespace.run(command)
        return m.Session(self._marks.session(visitor.principal, done.number)), ()
