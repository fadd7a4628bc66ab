"""Floods against little memory: growth is refused in time, and a loss is still repaired."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace

import msgspec
import pytest

from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import CapacityExceeded
from diskless.identity.handshake import Caller, Challenge
from diskless.launch.local import LocalCluster
from diskless.namespace import commands as c
from diskless.protocol import messages as m
from diskless.protocol.frames import HEADER_BYTES, Header, pack_header, unpack_header
from diskless.protocol.messages import Kind
from tests.conftest import Connect, StartCluster
from tests.support import (
    BRISK,
    STRIPED,
    content,
    eventually,
    is_whole,
    kill,
    leader,
    on_loop,
)

K = 2
FILES_AT_ONCE = 1000
CLIENTS = 5000


def fill_with_names(client: Client, name: str, *, batches: int = 200) -> tuple[int, str]:
    """Puts empty files until no more are taken; how many were, and the last refusal."""
    for batch in range(batches):
        try:
            files = {f"/flood/{batch}/{name}{n}": b"" for n in range(FILES_AT_ONCE)}
            client.write_many(files)
        except CapacityExceeded as error:
            return batch * FILES_AT_ONCE, str(error)
    raise AssertionError(f"{batches * FILES_AT_ONCE} files were taken")


def most_used(cluster: LocalCluster) -> float:
    """Of the fullest agent's memory, the part in use: what lasts, never more than all of it,
    and what passes."""
    accounts = [node.memory for node in cluster.nodes.values()]

    def look() -> float:
        assert all(memory.lasting <= memory.bytes_max for memory in accounts)
        return max(memory.used / memory.bytes_max for memory in accounts)

    return on_loop(cluster, look)


@pytest.mark.parametrize("name", ["", "n" * 200], ids=["short names", "long names"])
def test_a_flood_of_empty_files_is_refused_and_a_loss_during_it_is_repaired(
    start: StartCluster, connect: Connect, name: str
) -> None:
    cluster = start(agents=7, memory="16MiB", tuning=STRIPED)
    client = connect(cluster)
    data = content(12 * MIB)
    client.write("/data", data)
    taken, refusal = fill_with_names(client, name)
    assert taken >= 2 * FILES_AT_ONCE
    assert "delete files" in refusal
    assert "--memory" in refusal
    assert most_used(cluster) <= 1.25
    kill(cluster, 6)  # It stays dead.
    eventually(lambda: client.status().margin == K)
    assert client.status().repair.unprotectable == 0
    assert most_used(cluster) <= 1.25
    assert client.read("/data") == data
    with pytest.raises(CapacityExceeded):
        client.write_many({f"/again/{name}{n}": b"" for n in range(FILES_AT_ONCE)})
    kill(cluster, 1)
    cluster.revive(1, 6)  # a voter too, which copies the full namespace
    eventually(lambda: is_whole(client, 7))
    assert most_used(cluster) <= 1.25
    assert client.delete("/flood", recursive=True)
    client.mkdirs("/one/more")


def test_what_a_lost_agent_held_is_rebuilt_in_the_reserve_of_full_ones(
    start: StartCluster, connect: Connect
) -> None:
    """Clients cannot have the reserve: it is there for this."""
    cluster = start(agents=16, memory="16MiB", tuning=STRIPED)
    client = connect(cluster)
    with suppress(CapacityExceeded):
        for number in range(1000):
            client.write(f"/{number}", content(MIB, number))
    assert most_used(cluster) > 0.8, "it is not full"
    assert most_used(cluster) <= 1.25
    kill(cluster, 15)
    eventually(lambda: client.status().margin == K, 60.0)
    assert client.status().repair.unprotectable == 0
    assert most_used(cluster) <= 1.25
    assert client.read("/0") == content(MIB, 0)
    assert client.delete("/0")


def test_the_namespace_gets_less_room_as_data_fills_the_voters(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(memory="16MiB", tuning=STRIPED)
    client = connect(cluster)
    eventually(lambda: client.status().bytes_namespace_max == 8 * MIB)
    for number in range(11):
        client.write(f"/{number}", content(4 * MIB, number))
    eventually(lambda: client.status().bytes_namespace_max <= 4 * MIB)
    state = client.status()
    assert state.bytes_namespace == leader(cluster).replica.state.bytes_used
    for agent in state.agents:
        assert agent.bytes_used == sum(agent.memory.values())
    # However they are spread: less goes to an agent that seems slow. Pulses are late at times.
    eventually(lambda: sum(agent.memory["shards"] for agent in client.status().agents) > 60 * MIB)
    client.delete("/", recursive=True)
    eventually(lambda: client.status().bytes_namespace_max == 8 * MIB)


# Clients


class Wire:
    """A client's connection without a client."""

    def __init__(self, cluster: LocalCluster, slot: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60.0)
        self.socket.connect(cluster.nodes[slot].settings.socket_path)
        caller = Caller(cluster.keyring.admin(), door="gateway")
        knock = caller.knock()
        self.send(Kind.HELLO, m.Hello(knock.claims, knock.nonce))
        told = msgspec.json.decode(self.receive()[1], type=m.Challenged)
        proof = caller.answer(Challenge(told.slot, told.nonce, told.proof))
        assert proof is not None
        self.send(Kind.PROVE, m.Prove(proof.proof))

    def send(self, kind: Kind, meta: object, payload: bytes = b"", request: int = 1) -> None:
        data = m.encode(meta)
        header = pack_header(kind, request, meta_bytes=len(data), payload_bytes=len(payload))
        self.socket.sendall(header + data + payload)

    def receive(self) -> tuple[Header, bytes]:
        header = unpack_header(self._read(HEADER_BYTES))
        body = self._read(header.meta_bytes + header.payload_bytes)
        return header, body[: header.meta_bytes]

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            assert more, "closed"
            found += more
        return found

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_five_thousand_clients_are_connected_and_each_has_its_session(
    start: StartCluster, connect: Connect
) -> None:
    # It is about sessions, not about silence: all agents share this process with the clients.
    cluster = start(memory="512MiB", tuning=replace(BRISK, failure_timeout_s=10.0))
    client = connect(cluster)
    slot = leader(cluster).slot
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(cluster, slot)) for _ in range(CLIENTS)]
        for wire in wires:
            assert wire.receive()[0].kind == Kind.DONE
            wire.send(Kind.SESSION, m.Empty())
        sessions = [session_of(wire.receive()) for wire in wires]
        assert len(set(sessions)) == CLIENTS
        assert client.status().sessions >= CLIENTS
        for wire, session in zip(wires, sessions, strict=True):  # the first ones too
            wire.send(Kind.MKDIRS, m.Mkdirs(session, 1, f"/client/{session}"))
        assert all(wire.receive()[0].kind == Kind.DONE for wire in wires)
        assert most_used(cluster) < 0.2
    assert client.summary("/client").directories == CLIENTS + 1


def session_of(reply: tuple[Header, bytes]) -> int:
    header, meta = reply
    assert header.kind == Kind.DONE, meta
    return int(msgspec.json.decode(meta, type=m.Session).session)


def test_sessions_end_where_memory_does_and_deletes_go_on(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(memory="16MiB", tuning=BRISK)
    client = connect(cluster)
    client.write("/old", b"1")

    async def flood() -> str:
        opened = (namespace.execute(c.OpenSession()) for _ in range(1000))
        for (result,) in await asyncio.gather(*opened):
            if isinstance(result, c.Refused):
                return result.reason
        return "all were opened"

    namespace = leader(cluster).namespace
    rounds = (cluster.run(flood()) for _ in range(100))
    assert next(said for said in rounds if said != "all were opened") == "CapacityExceeded"
    assert most_used(cluster) <= 1.25
    assert client.delete("/old")
    assert is_whole(client, 6)


def test_uploads_that_never_end_take_a_part_of_the_memory_and_no_more(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(memory="16MiB", tuning=BRISK)
    client = connect(cluster)
    client.write("/old", b"1")
    refusals: list[str] = []
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(cluster, 5)) for _ in range(150)]
        for offset in (0, 900 * KIB):
            for number, wire in enumerate(wires):
                if not offset:
                    wire.receive()
                wire.send(Kind.WRITE, m.Write(number + 1, offset), bytes(900 * KIB))
                header, meta = wire.receive()
                assert most_used(cluster) <= 1.25
                if header.kind == Kind.REFUSED:
                    refusals.append(msgspec.json.decode(meta, type=m.Refusal).message)
        assert any("--memory" in refusal for refusal in refusals)
        assert on_loop(cluster, lambda: cluster.nodes[5].memory.of("uploads")) <= 4 * MIB
        assert client.delete("/old")
        client.write("/new", b"2")
    eventually(lambda: on_loop(cluster, lambda: cluster.nodes[5].memory.of("uploads")) == 0)
