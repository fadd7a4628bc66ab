"""The Ray actor that runs one agent: a Node on an event loop of its own thread.

Ray runs the constructor again, with the same arguments, whenever the process died. An
exception in it would leave the actor dead for ever, so it only starts the thread, and
whatever fails there is tried again. Ray is called to find the other agents at the start,
and for a leader whose agents have lost their hosts (see `rehoster`). A cluster is formed
by `form`, which names one life of this actor: a restarted one, whose memory is empty, can
never take the call for its own.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray
import uvloop

from diskless.config import ClusterSettings
from diskless.errors import LaunchFailed
from diskless.launch import rundir
from diskless.malloc import keep_heap
from diskless.model import slot_name

if TYPE_CHECKING:
    from diskless.launch.agents import Identity
    from diskless.node import Node

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
LOOP_TIMEOUT_S = 5.0
"""How long the event loop may take to answer a call of Ray's."""
SEED_PAUSE_S = 0.5
SEED_TIMEOUT_S = 2.0

LOG_VARIABLE = "DISKLESS_LOG"
"""How much agents log, as Python names it. With `debug` a leader names, for each command that
it acknowledges, the voters who had it by then."""
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


@dataclass(frozen=True, kw_only=True)
class AgentArgs:
    """What an agent is told, in every one of its lives."""

    settings: ClusterSettings
    cluster_id: str
    secret: str
    slot: int
    namespace: str
    """Ray namespace in which the other agents have their names."""
    one_host: bool
    """All agents are on one host: then nothing listens beyond loopback."""
    founding: bool
    """Its first life waits for `up` to form the cluster; others recover from it."""
    audit_dir: str = ""
    """Where agents keep their audit files; nowhere if this is empty."""
    seeds: Mapping[int, str] = field(default_factory=dict)
    """Addresses of agents that this Ray may not know: they run under an earlier one."""


@dataclass(frozen=True, kw_only=True)
class AgentState:
    """What an agent says of itself to `up`; addresses are empty until it serves."""

    slot: int
    cluster_id: str
    pid: int
    boot: str = ""
    address: str = ""
    gateway: str = ""
    socket: str = ""
    host: str = ""
    node: str = ""
    joined: bool = False
    sees: int = 0
    error: str = ""


class AgentActor:
    def __init__(self, args: AgentArgs) -> None:
        self._args = args
        self._error = ""
        self._formed = False
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT)
        wanted = os.environ.get(LOG_VARIABLE, "info").upper()
        level = logging.getLevelNamesMapping().get(wanted, logging.INFO)
        logging.getLogger("diskless").setLevel(level)
        keep_heap()
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    # What `up`, `down` and other agents call, on Ray's threads.

    def state(self) -> AgentState:
        args, node = self._args, self._node
        state = AgentState(
            slot=args.slot, cluster_id=args.cluster_id, pid=os.getpid(), error=self._error
        )
        if node is None:
            return state
        joined, sees = self._call(_progress(node))
        return replace(
            state,
            error="",
            boot=node.boot,
            address=node.address,
            gateway=node.gateway_address,
            socket=node.settings.socket_path,
            host=node.settings.failure_domain,
            node=node.settings.node,
            joined=joined,
            sees=sees,
        )

    def form(self, boot: str, addresses: dict[int, str]) -> None:
        """Begins the namespace, in the life that `boot` names. Raises LaunchFailed."""
        node = self._node
        if node is None or node.boot != boot:
            raise LaunchFailed(f"{slot_name(self._args.slot)} died while the cluster was formed")
        self._formed = True
        self._call(node.form(addresses))

    def leave(self) -> None:
        """Stops serving and removes what is on this host, before the process is ended."""
        node, self._node = self._node, None
        if node is not None:
            self._call(node.stop())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(LOOP_TIMEOUT_S)
        except FutureTimeout:
            raise TimeoutError(
                f"{slot_name(self._args.slot)} did not answer within {LOOP_TIMEOUT_S:g} s"
            ) from None

    # The agent's own thread.

    def _run(self) -> None:
        while True:
            try:
                uvloop.run(self._serve())
            except Exception as error:  # the edge of a thread: see the module
                log.exception("agent failed slot=%s", slot_name(self._args.slot))
                self._error = f"{type(error).__name__}: {error}"
            time.sleep(RETRY_PAUSE_S)

    async def _serve(self) -> None:
        # Imported here: what fails here is tried again, at the top it would be final.
        from diskless.launch.rehoster import RayHosts
        from diskless.node import Node, NodeSettings

        args = self._args
        self._loop = asyncio.get_running_loop()
        directory = rundir.make_run_dir(args.cluster_id)
        address = ray.util.get_node_ip_address()
        node = Node(
            NodeSettings(
                cluster=args.settings,
                cluster_id=args.cluster_id,
                secret=args.secret,
                slot=args.slot,
                socket_path=str(directory / f"{slot_name(args.slot)}.sock"),
                bind_host="127.0.0.1" if args.one_host else address,
                failure_domain=f"{socket.gethostname()}/{address}",
                node=ray.get_runtime_context().get_node_id(),
                seeds={slot: at for slot, at in args.seeds.items() if slot != args.slot},
                audit_dir=args.audit_dir,
            ),
            hosts=RayHosts(self._identity(), one_host=args.one_host),
        )
        try:
            await node.start()
            self._node = node
            if self._is_later_life():
                await self._rejoin(node)
            await asyncio.Event().wait()  # until the process ends
        finally:
            self._node = None
            await node.stop()

    def _identity(self) -> "Identity":
        from diskless.launch.agents import Identity

        return Identity(self._args.settings, self._args.cluster_id, self._args.secret)

    def _is_later_life(self) -> bool:
        """Whether the cluster was formed before this life of the agent began."""
        reconstructed = ray.get_runtime_context().was_current_actor_reconstructed
        return self._formed or not self._args.founding or bool(reconstructed)

    async def _rejoin(self, node: "Node") -> None:
        """Recovers; until that is done, looks again and again where the voters are."""
        await self._find_voters(node)
        await node.recover()
        while not node.member.joined.is_set():
            await asyncio.sleep(SEED_PAUSE_S)
            await self._find_voters(node)

    async def _find_voters(self, node: "Node") -> None:
        others = [slot for slot in range(self._args.settings.voters) if slot != self._args.slot]
        await asyncio.gather(*(self._find(node, slot) for slot in others))

    async def _find(self, node: "Node", slot: int) -> None:
        """Takes Ray's word for where a voter is, unless the voter itself has spoken since."""
        before = node.roster.address_of(slot)
        address = await asyncio.to_thread(self._ask, slot)
        if address and node.roster.address_of(slot) == before:
            node.roster.meet({slot: address})

    def _ask(self, slot: int) -> str:
        try:
            other = ray.get_actor(slot_name(slot), namespace=self._args.namespace)
            state: AgentState = ray.get(other.state.remote(), timeout=SEED_TIMEOUT_S)
        except (ValueError, TimeoutError, ray.exceptions.RayError):
            return ""
        return state.address if state.cluster_id == self._args.cluster_id else ""


async def _progress(node: "Node") -> tuple[bool, int]:
    return node.member.joined.is_set() and node.replica.recovered, len(node.roster.alive())
