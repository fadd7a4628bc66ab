"""One agent in a process of its own, for tests that ask what a process takes: `AgentProcess`.

As a program it runs the agent: its settings come as one line of JSON, and it answers every
line it is sent with one.
"""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from diskless.client import Client, connect, descriptor
from diskless.config import ClusterSettings
from diskless.identity.certificates import Pair, make_authority
from diskless.identity.claims import Keyring
from diskless.identity.keyfile import Keys, decode, encode
from diskless.launch.certify import certificates_for
from diskless.malloc import keep_heap, spare_modules
from diskless.node import Node, NodeSettings
from diskless.protocol.messages import Peer

READY_TIMEOUT_S = 60.0


class AgentProcess:
    """The parent's side of one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.begun = self.ask(settings)

    def ask(self, line: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss)

    @property
    def resident_bytes_most(self) -> int:
        """The most that it ever was, as the kernel saw it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return 1024 * int(line.split()[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ProcessCluster:
    """A cluster with a process for each agent. Use it in a `with` block."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings.validate()
        self.agents: dict[int, AgentProcess] = {}
        self._cluster_id = secrets.token_hex(8)
        self._secret = secrets.token_hex(32)
        authority = Pair(b"", b"")
        if settings.tls:
            authority = make_authority(settings.name, self._cluster_id)
        self._keys = Keys(
            cluster=self._cluster_id,
            name=settings.name,
            root=self._secret,
            authority=authority.chain.decode(),
            authority_key=authority.key.decode(),
        )
        self._directory = tempfile.TemporaryDirectory(prefix="diskless-")

    def __enter__(self) -> Self:
        try:
            for slot in range(self.settings.agents):
                self._start(slot)
            for agent in self.agents.values():
                agent.ask({"form": self._addresses()})
            for agent in self.agents.values():
                agent.ask({"ready": self.settings.agents})
        except BaseException:
            self.close()
            raise
        self.idle_bytes = max(agent.resident_bytes for agent in self.agents.values())
        """What an agent takes that holds nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for slot in list(self.agents):
            self.kill(slot)
        self._directory.cleanup()
        descriptor.remove(self.settings.name)

    def connect(self, *, timeout_s: float = 60.0) -> Client:
        peers = [
            Peer(slot, agent.begun["gateway"], agent.begun["socket"], "localhost", True)
            for slot, agent in self.agents.items()
        ]
        descriptor.save(
            descriptor.Descriptor(
                cluster=self._cluster_id,
                name=self.settings.name,
                key=self._secret,
                authority=self._keys.authority,
                settings=self.settings.to_dict(),
                gateways=peers,
            )
        )
        return connect(f"diskless://{self.settings.name}/", timeout_s=timeout_s)

    def kill(self, slot: int) -> None:
        self.agents.pop(slot).kill()

    def revive(self, slot: int) -> None:
        self._start(slot)
        self.agents[slot].ask({"recover": True})
        self.agents[slot].ask({"ready": len(self.agents)})

    def socket_of(self, slot: int) -> str:
        return str(self.agents[slot].begun["socket"])

    @property
    def keyring(self) -> Keyring:
        return Keyring.from_hex(self._cluster_id, self._secret)

    def _start(self, slot: int) -> None:
        self.agents[slot] = AgentProcess(
            {
                "cluster": self.settings.to_dict(),
                "cluster_id": self._cluster_id,
                "keys": encode(self._keys).decode(),
                "slot": slot,
                "socket_path": str(Path(self._directory.name) / f"{slot}.sock"),
                "seeds": self._addresses(),
            }
        )

    def _addresses(self) -> dict[int, str]:
        return {slot: agent.begun["address"] for slot, agent in self.agents.items()}


# The agent's side.


async def serve() -> None:
    loop = asyncio.get_running_loop()

    async def next_line() -> dict[str, Any]:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    given = await next_line()
    given["cluster"] = ClusterSettings.from_dict(given["cluster"])
    given["seeds"] = {int(slot): at for slot, at in given["seeds"].items()}
    keys = decode(given.pop("keys").encode())
    tls = certificates_for(given["cluster"], keys, slot=given["slot"], hosts=("127.0.0.1",))
    node = Node(NodeSettings(key=keys.root, tls=tls, **given))
    await node.start()

    async def leave() -> None:
        """As the actor does."""
        if await node.leave(why="SIGTERM"):
            await node.stop()
            os._exit(128 + signal.SIGTERM)

    leaving: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGTERM, lambda: leaving.append(loop.create_task(leave())))
    answer: dict[str, Any] = {
        "address": node.address,
        "gateway": node.gateway_address,
        "socket": node.settings.socket_path,
        "lane_port": node.doors.server.lane_port,
    }
    while True:
        print(json.dumps(answer), flush=True)
        line = await next_line()
        answer = {}
        if not line:
            break
        if "form" in line:
            await node.form({int(slot): at for slot, at in line["form"].items()})
        elif "recover" in line:
            await node.recover()
        elif "ready" in line:
            await node.ready(READY_TIMEOUT_S)
            await node.sees(line["ready"], READY_TIMEOUT_S)
    await node.stop()


if __name__ == "__main__":
    import uvloop

    keep_heap()
    spare_modules()
    uvloop.run(serve())
