"""The Ray actor that runs one agent: a Node on an event loop of its own thread.

Ray runs the constructor again, with the same arguments, whenever the process died. An
exception in it would leave the actor dead forever, so it only starts the thread, and
whatever fails there is tried again. Ray is called to find the other agents at the start,
and for a leader whose agents have lost their hosts (see `rehoster`). A cluster is formed
by `form`, which names one life of this actor: a restarted one, whose memory is empty, can
never take the call for its own.

The cluster's keys are in a file on this host. Where there is none it asks for a ticket, by what
it says of itself, redeems the one that it is given (`redeem`), and writes the file: so the next
life finds it. Nothing secret is in the arguments, which Ray keeps.

SIGTERM is an announcement: the agent is emptied first, and ends then.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import uvloop

from diskless.errors import DisklessError, LaunchFailed
from diskless.identity import keyfile
from diskless.identity.keyfile import Keys
from diskless.identity.tickets import Ticket
from diskless.launch import log_lines, logs, rundir, sigterm
from diskless.launch.model import AgentArgs, AgentState, Identity
from diskless.launch.tickets import redeem
from diskless.malloc import keep_heap, spare_modules
from diskless.model import slot_name

if TYPE_CHECKING:
    from diskless.node import Node

log = logging.getLogger(__name__)

EXIT_TOLD = 128 + signal.SIGTERM
RETRY_PAUSE_S = 1.0
LOOP_TIMEOUT_S = 5.0
"""How long the event loop may take to answer a call of Ray's."""
RESTORE_TIMEOUT_S = 1700.0
"""How long it may load a namespace from the tier: see `agents`."""
SEED_PAUSE_S = 0.5
SEED_TIMEOUT_S = 2.0
KEEP_S = 3600.0
"""How often the key file is looked after: systems remove from temporary directories what is old."""
NO_KEYS = (
    "this host does not have the cluster's keys{refused}: a leader passes them on, or "
    "`diskless chaos revive {slot}` does"
)


class Trouble(NamedTuple):
    """Why an agent does not serve. Replaced as a whole: other threads read it."""

    error: str = ""
    wants_keys: bool = False


class AgentActor:
    def __init__(self, args: AgentArgs) -> None:
        self._leaving = False
        self._args = args
        self._trouble = Trouble()
        self._lacks_keys = False
        self._ticket: Ticket | None = None
        self._refused = ""
        """Why the last ticket was of no use."""
        self._said = ""
        self._woken = threading.Event()
        self._formed = False
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        log_lines.set_up()
        keep_heap()
        if not sigterm.heed(self._told_to_end):
            log.warning("SIGTERM ends this agent at once, with what it has")
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def _told_to_end(self) -> None:
        """More of the same while it leaves changes nothing: whoever cannot wait has SIGKILL."""
        loop, node = self._loop, self._node
        if loop is None or node is None:
            os._exit(EXIT_TOLD)
        if not self._leaving:
            self._leaving = True
            asyncio.run_coroutine_threadsafe(self._end(node), loop)

    async def _end(self, node: "Node") -> None:
        """Ray starts the next life, which is empty, if the host is still there."""
        try:
            if await node.leave(why="SIGTERM"):
                await node.stop()
                os._exit(EXIT_TOLD)
        except Exception:  # it was told to end, whatever happens
            log.exception("left in disorder slot=%s", slot_name(self._args.slot))
            os._exit(EXIT_TOLD)
        finally:
            self._leaving = False

    # What `up`, `down` and other agents call, on Ray's threads.

    def state(self) -> AgentState:
        args, node, trouble = self._args, self._node, self._trouble
        state = AgentState(
            slot=args.slot,
            cluster_id=args.cluster_id,
            pid=os.getpid(),
            error=trouble.error,
            wants_keys=trouble.wants_keys,
        )
        if node is None:
            return state
        joined, sees = self._call(_progress(node))
        return replace(
            state,
            error="",
            wants_keys=False,
            boot=node.boot,
            address=node.address,
            gateway=node.gateway_address,
            socket=node.settings.socket_path,
            host=node.settings.failure_domain,
            node=node.settings.node,
            joined=joined,
            sees=sees,
            restored=node.restored,
        )

    def form(self, boot: str, addresses: dict[int, str]) -> None:
        """Begins the namespace, in the life that `boot` names, with what the tier holds if it is
        to be restored. Raises LaunchFailed, and what is wrong with the tier."""
        node = self._node
        if node is None or node.boot != boot:
            raise LaunchFailed(f"{slot_name(self._args.slot)} died while the cluster was formed")
        self._formed = True
        if self._args.tier is not None and self._args.tier.restores:
            self._call(node.restore(), timeout_s=RESTORE_TIMEOUT_S)
        self._call(node.form(addresses))

    def redeem(self, ticket: Ticket) -> None:
        """Gets the keys for it, if there are none here."""
        self._trouble = Trouble()
        self._ticket = ticket
        self._woken.set()

    def leave(self) -> None:
        """Stops serving and removes what is on this host, before the process is ended."""
        node, self._node = self._node, None
        if node is not None:
            self._call(node.stop())

    def _call(self, work: Coroutine[Any, Any, Any], timeout_s: float = LOOP_TIMEOUT_S) -> Any:
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)
        except FutureTimeout:
            raise TimeoutError(
                f"{slot_name(self._args.slot)} did not answer within {timeout_s:g} s"
            ) from None

    # The agent's own thread.

    def _run(self) -> None:
        while True:
            try:
                uvloop.run(self._serve())
            except DisklessError as error:
                self._tell(error)
            except Exception as error:  # the edge of a thread: see the module
                log.exception("agent failed slot=%s", slot_name(self._args.slot))
                self._trouble = Trouble(f"{type(error).__name__}: {error}")
            self._woken.wait(RETRY_PAUSE_S)
            self._woken.clear()

    def _tell(self, error: DisklessError) -> None:
        """What an operator can mend: once in the log, for as long as it is so in the state."""
        said = f"{error.reason}: {error}"
        if said != self._said:
            log.error("agent does not start slot=%s error=%s", slot_name(self._args.slot), said)
        self._said = said
        self._trouble = Trouble(said, self._lacks_keys)

    async def _serve(self) -> None:
        # Imported here: what fails here is tried again, at the top it would be final.
        from diskless.launch.audit import audit_dir
        from diskless.launch.certify import certificates_for
        from diskless.launch.rehoster import RayHosts
        from diskless.node import Node, NodeSettings

        spare_modules()
        args = self._args
        self._loop = asyncio.get_running_loop()
        directory = rundir.make_run_dir(args.cluster_id)
        logs.note(directory, args.slot)
        keys = await self._find_keys()
        address = ray.util.get_node_ip_address()
        bind_host = "127.0.0.1" if args.one_host else address
        node = Node(
            NodeSettings(
                cluster=args.settings,
                cluster_id=args.cluster_id,
                key=keys.root,
                slot=args.slot,
                socket_path=str(directory / f"{slot_name(args.slot)}.sock"),
                bind_host=bind_host,
                failure_domain=f"{socket.gethostname()}/{address}",
                node=ray.get_runtime_context().get_node_id(),
                seeds={slot: at for slot, at in args.seeds.items() if slot != args.slot},
                tls=certificates_for(
                    args.settings,
                    keys,
                    slot=args.slot,
                    hosts=(bind_host, address, socket.gethostname()),
                ),
                audit_dir=audit_dir(args.settings, args.cluster_id),
                tier=args.tier,
            ),
            hosts=RayHosts(
                Identity(args.settings, keys, args.one_host, args.tier), actor_class=AgentActor
            ),
        )
        try:
            await node.start()
            self._node = node
            if self._is_later_life():
                await self._rejoin(node)
            await self._keep(keys)
        finally:
            self._node = None
            await node.stop()

    async def _find_keys(self) -> Keys:
        """From the file on this host, else for a ticket. Raises LaunchFailed."""
        args = self._args
        path = rundir.key_path(args.cluster_id)
        self._lacks_keys = False
        keys = keyfile.read(path, cluster=args.cluster_id)
        if keys is not None:
            return keys
        ticket, self._ticket = self._ticket, None
        self._lacks_keys = True
        if ticket is None:
            raise LaunchFailed(NO_KEYS.format(slot=args.slot, refused=self._refused))
        try:
            keys = await redeem(ticket)
        except LaunchFailed as error:
            self._refused = f" ({error})"
            raise
        self._lacks_keys = False
        keyfile.write(path, keys)
        return keys

    async def _keep(self, keys: Keys) -> None:
        """Has the file there for the next life, until the process ends."""
        path = rundir.key_path(self._args.cluster_id)
        while True:
            await asyncio.sleep(KEEP_S)
            try:
                rundir.make_run_dir(self._args.cluster_id)
                keyfile.write(path, keys)
            except (OSError, LaunchFailed) as error:
                log.warning("keys not kept path=%s error=%s", path, error)

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
