"""A cluster in this process: real agents, real gRPC, real sockets, one thread.

For tests and notebooks: it starts in a moment and needs no Ray. Killing an agent
here drops its memory and closes its doors, but all agents share one process: use
`diskless up` for anything that must outlive it.
"""

import asyncio
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from diskless.agent.tiers import OpenTier
from diskless.client.client import Client, connect
from diskless.client.descriptor import Descriptor, remove, save
from diskless.config import ClusterSettings, TierSettings
from diskless.identity.certificates import Pair, issue, make_authority
from diskless.identity.claims import Keyring, make_root
from diskless.identity.keyfile import Keys
from diskless.launch import tiers
from diskless.launch.certify import certificates_for
from diskless.node import Node, NodeSettings, read_wall_ms
from diskless.protocol.messages import Peer

if TYPE_CHECKING:
    from diskless.tier.restore import At

BIND_HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 60.0

T = TypeVar("T")


class LocalCluster:
    """Agents on an event loop in a background thread. Use it in a `with` block."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        hosts: Mapping[int, str] | None = None,
        wall_clocks: Mapping[int, Callable[[], int]] | None = None,
        tls: bool = False,
        audit_dir: str = "",
        tier: str = "",
        restore: str = "",
        at: "At | None" = None,
        begins: TierSettings | None = None,
        open_tier: Callable[[int], OpenTier] | None = None,
    ) -> None:
        """`hosts` names the failure domain of slots; by default all share one. `wall_clocks`
        are read, in milliseconds, by slots whose wall clock is not the machine's. `tls` makes an
        authority for this cluster, which issues a certificate to each agent. Agents have audit
        files if `audit_dir` says where. `tier` is the address of a durable tier that nobody has
        yet, `restore` of one to continue with, from its newest manifest or from one `at`. `begins`
        is where in a tier's chain it begins, without asking anybody. `open_tier` gives slots
        another way to it."""
        chosen = replace(settings, tls=tls or bool(settings.tls), tier=tier or restore)
        self.settings = chosen.validate()
        self.key = make_root().hex()
        self.cluster_id = secrets.token_hex(8)
        self.authority: Pair | None = None
        if self.settings.tls:
            self.authority = make_authority(settings.name, self.cluster_id)
        self.nodes: dict[int, Node] = {}
        self._hosts = dict(hosts or {})
        self._wall_clocks = dict(wall_clocks or {})
        self._audit_dir = audit_dir
        self._restores, self._at = bool(restore), at
        self._open_tier = open_tier
        self._tier = begins
        self._dir = Path(tempfile.mkdtemp(prefix="diskless-"))
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._begin()
            save(self._descriptor())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """Where its files are, for fsspec, Spark and `diskless.connect`."""
        return f"diskless://{self.settings.name}/"

    @property
    def keyring(self) -> Keyring:
        return Keyring.from_hex(self.cluster_id, self.key)

    def token(self, *paths: str, name: str = "client", writes: bool = True) -> str:
        """A client's, for these paths."""
        return self.keyring.client(name, paths=paths or ("/",), writes=writes).token

    def connect(self, *, token: str = "", timeout_s: float = CALL_TIMEOUT_S) -> Client:
        return connect(self.uri, token=token, timeout_s=timeout_s)

    def issue(self, slot: int) -> Pair:
        """A certificate for an agent of a cluster with TLS."""
        assert self.authority is not None
        return issue(self.authority, cluster=self.cluster_id, slot=slot, hosts=[BIND_HOST])

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the agents' loop and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def kill(self, *slots: int) -> None:
        """Ends agents at once, with all that they remember."""

        async def end() -> None:
            await asyncio.gather(*(self.nodes.pop(slot).stop() for slot in slots))

        self.run(end())

    def revive(self, *slots: int, prepare: Callable[[Node], None] | None = None) -> None:
        """Starts killed agents again: same slots, new incarnations, empty memories. Each is passed
        to `prepare`, on the agents' loop, before the others hear of it."""

        async def begin(slot: int) -> None:
            await self._start(slot)
            if prepare is not None:
                prepare(self.nodes[slot])
            await self.nodes[slot].recover()

        for slot in slots:
            self.run(begin(slot))
        for slot in slots:
            self.run(self.nodes[slot].ready(START_TIMEOUT_S))
        for node in self.nodes.values():
            self.run(node.sees(len(self.nodes), START_TIMEOUT_S))

    def renew(self, *slots: int) -> None:
        """Gives agents new certificates."""

        async def refresh(slot: int) -> None:
            tls = self.nodes[slot].settings.tls
            assert tls is not None, "this cluster has no TLS"
            tls.refresh()

        for slot in slots:
            self.run(refresh(slot))

    def grow(self, agents: int) -> None:
        """Adds slots, as `diskless up --agents` does; what runs is not told of it."""
        added = range(self.settings.agents, agents)
        self.settings = replace(self.settings, agents=agents).validate()
        self.revive(*added)
        save(self._descriptor())

    def close(self) -> None:
        """Ends the cluster and everything in it."""
        remove(self.settings.name)
        if self._thread.is_alive():
            for slot in list(self.nodes):
                self.kill(slot)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        shutil.rmtree(self._dir, ignore_errors=True)

    @property
    def _keys(self) -> Keys:
        authority = self.authority or Pair(b"", b"")
        return Keys(
            cluster=self.cluster_id,
            name=self.settings.name,
            root=self.key,
            authority=authority.chain.decode(),
            authority_key=authority.key.decode(),
        )

    def _descriptor(self) -> Descriptor:
        return Descriptor(
            cluster=self.cluster_id,
            name=self.settings.name,
            key=self.key,
            authority=self._keys.authority,
            authority_key=self._keys.authority_key,
            settings=self.settings.to_dict(),
            gateways=[
                Peer(slot, node.gateway_address, node.settings.socket_path, "localhost", True)
                for slot, node in self.nodes.items()
            ],
        )

    def _begin(self) -> None:
        """Finds out where in the tier's chain the cluster begins, and starts its agents."""
        if self._restores:
            from diskless.tier.restore import NEWEST  # only who has a tier needs its libraries

            at = self._at or NEWEST
            self._tier = tiers.take_over(self.settings, self.cluster_id, at).tier
        elif self.settings.tier:
            self._tier = tiers.check(self.settings, self.cluster_id)
        self.run(self._start_all())

    async def _start_all(self) -> None:
        for slot in range(self.settings.agents):
            await self._start(slot)
        for node in self.nodes.values():
            await node.restore()
        addresses = {slot: node.address for slot, node in self.nodes.items()}
        for node in self.nodes.values():
            await node.form(addresses)
        for node in self.nodes.values():
            await node.ready(START_TIMEOUT_S)
            await node.sees(self.settings.agents, START_TIMEOUT_S)

    async def _start(self, slot: int) -> None:
        assert slot not in self.nodes, f"slot {slot} runs already"
        hosts = (BIND_HOST, "localhost")
        node = Node(
            NodeSettings(
                cluster=self.settings,
                cluster_id=self.cluster_id,
                key=self.key,
                slot=slot,
                socket_path=str(self._dir / f"agent-{slot}.sock"),
                bind_host=BIND_HOST,
                tls=certificates_for(self.settings, self._keys, slot=slot, hosts=hosts),
                failure_domain=self._hosts.get(slot, "localhost"),
                node="local",
                seeds={other: node.address for other, node in self.nodes.items()},
                wall_ms=self._wall_clocks.get(slot, read_wall_ms),
                audit_dir=self._audit_dir,
                tier=self._tier,
            ),
            open_tier=self._open_tier(slot) if self._open_tier is not None else None,
        )
        await node.start()
        self.nodes[slot] = node
