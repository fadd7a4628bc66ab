"""An agent's doors: gRPC for other agents, the gateway's two for clients, HTTP for people and
Prometheus. Built from the agent's parts, opened and closed together."""

from typing import TYPE_CHECKING

from diskless.agent.audit import AuditFile
from diskless.agent.faults import Faults
from diskless.agent.lag import LagMeter
from diskless.agent.membership import Member
from diskless.agent.memory import Memory
from diskless.agent.notebook import Notebook
from diskless.agent.replica import Replica
from diskless.agent.revoked import Revoked
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.gateway.handlers import ClientHandlers
from diskless.gateway.limits import raise_files_max
from diskless.gateway.marks import Marks
from diskless.gateway.server import Gateway
from diskless.identity.handshake import Doorkeeper
from diskless.identity.refusals import Refusals
from diskless.node.settings import NodeSettings, gateway_port
from diskless.node.storage import Storage
from diskless.rpc.peers import Peers
from diskless.rpc.server import AgentServer
from diskless.rpc.tls import Tls

if TYPE_CHECKING:
    from diskless.dashboard.door import HttpDoor
    from diskless.dashboard.own import Own
    from diskless.dashboard.page import Page

LOOPBACK = "127.0.0.1"


class Doors:
    def __init__(
        self,
        settings: NodeSettings,
        *,
        storage: Storage,
        roster: Roster,
        peers: Peers,
        replica: Replica,
        namespace: Router,
        member: Member,
        notebook: Notebook,
        memory: Memory,
        faults: Faults,
        lag: LagMeter,
        revoked: Revoked,
        refusals: Refusals,
        audit: AuditFile | None,
        tls: Tls | None,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._roster = roster
        self._namespace = namespace
        self._notebook = notebook
        self._memory = memory
        self._refusals = refusals
        self.doorkeeper = Doorkeeper(
            settings.keyring,
            slot=settings.slot,
            revoked=revoked,
            wall_s=lambda: settings.wall_ms() / 1000,
        )
        self.server = AgentServer(
            slot=settings.slot,
            doorkeeper=self.doorkeeper,
            refusals=refusals,
            tls=tls,
            shards=storage.shards,
            rebuilds=storage.rebuilder,
            uploader=storage.uploader,
            cold=storage.cold,
            namespace=replica,
            member=member,
            voter=replica,
            notes=notebook,
        )
        self._serve_clients(faults)
        revoked.on_change(self.gateway.recheck)
        self.own: Own | None = None
        self.page: Page | None = None
        self.http: HttpDoor | None = None
        if settings.cluster.metrics_port:
            page = self.page = self._show(peers=peers, replica=replica, lag=lag, audit=audit)
            self.http = page.door
            revoked.on_change(page.door.recheck)

    def _serve_clients(self, faults: Faults) -> None:
        settings, storage = self._settings, self._storage
        self.handlers = ClientHandlers(
            settings=settings.cluster,
            cluster_id=settings.cluster_id,
            roster=self._roster,
            namespace=self._namespace,
            packer=storage.packer,
            reader=storage.reader,
            cold=storage.cold,
            hits=storage.hits,
            uploads=storage.uploads,
            faults=faults,
            shards=storage.shards,
            marks=Marks(settings.keyring, epoch=settings.epoch),
            notebook=self._notebook,
            epoch=settings.epoch,
            tls=settings.tls,
        )
        raise_files_max()
        self.gateway = Gateway(
            self.handlers,
            doorkeeper=self.doorkeeper,
            refusals=self._refusals,
            tls=settings.tls,
            tuning=settings.cluster.tuning,
            memory=self._memory,
        )

    def _show(
        self, *, peers: Peers, replica: Replica, lag: LagMeter, audit: AuditFile | None
    ) -> "Page":
        """What people and Prometheus look at."""
        # Only who shows something needs its libraries.
        from diskless.dashboard.own import Own
        from diskless.dashboard.page import Page

        settings, storage = self._settings, self._storage
        own = self.own = Own(
            slot=settings.slot,
            cluster=settings.cluster.name,
            memory=self._memory,
            shards=storage.shards,
            lag=lag,
            handlers=self.handlers,
            gateway=self.gateway,
            reader=storage.reader,
            refusals=self._refusals,
            peers=peers,
            replica=replica,
            tiers=storage.tiers,
            hits=storage.hits,
            copies=storage.copy_counts,
            audit=audit,
            notebook=self._notebook,
        )
        return Page(
            own,
            slot=settings.slot,
            keyring=settings.keyring,
            doorkeeper=self.doorkeeper,
            refusals=self._refusals,
            memory=self._memory,
            handlers=self.handlers,
            namespace=self._namespace,
            wall_ms=settings.wall_ms,
            is_ready=lambda: self._roster.version >= 0,
        )

    @property
    def http_address(self) -> str:
        """Where metrics are served; empty if they are not."""
        return self.http.address if self.http is not None else ""

    async def open_for_agents(self) -> str:
        """Opens the gRPC door; returns its host:port."""
        return await self.server.start(self._settings.bind_host)

    async def open_for_clients(self) -> None:
        """Opens the gateway's two doors, and the one for HTTP. Raises LaunchFailed."""
        settings = self._settings
        port = gateway_port(settings.cluster_id, settings.slot)
        await self.gateway.start(settings.socket_path, settings.bind_host, port)
        if self.http is not None:
            cluster = settings.cluster
            shown_to = settings.bind_host if cluster.metrics_open else LOOPBACK
            await self.http.start(shown_to, cluster.metrics_port + settings.slot, settings.tls)

    async def close_for_clients(self) -> None:
        await self.gateway.stop()
        if self.http is not None:
            await self.http.stop()

    async def close_for_agents(self) -> None:
        await self.server.stop()
