"""Another user of the host on a dead agent's doors: it learns nothing that lets it in anywhere."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory

import grpc
import msgspec
import pytest

from diskless.client import descriptor
from diskless.client.greeting import Greeter
from diskless.config import MIB
from diskless.errors import Unauthorized
from diskless.launch.local import LocalCluster
from diskless.model import format_address
from diskless.protocol import messages as m
from diskless.protocol.frames import VERSION, pack_head
from diskless.protocol.messages import Kind, Peer
from diskless.rpc.introduction import PROOF_KEY
from diskless.rpc.lane import Visitor, open_lane
from diskless.rpc.services import KNOCK_METHOD, METHODS
from tests.conftest import Connect, StartCluster
from tests.impostor import NOBODY, Stranger
from tests.support import BRISK, content, eventually, wait_until_down
from tests.unit.agents import refused_with

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process as another")

VICTIM, WITNESS = 3, 5


class Doors:
    """Where an agent was that has just died."""

    def __init__(self, cluster: LocalCluster, slot: int) -> None:
        node = cluster.nodes[slot]
        self.grpc = int(node.address.rpartition(":")[2])
        self.lane = node.doors.server.lane_port
        self.gateway = int(node.gateway_address.rpartition(":")[2])
        self.socket = node.settings.socket_path
        cluster.kill(slot)


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def cluster(request: pytest.FixtureRequest, start: StartCluster) -> LocalCluster:
    return start(agents=7, tuning=BRISK, tls=request.param)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may write to."""
    with TemporaryDirectory(prefix="diskless-public-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


def secrets_of(cluster: LocalCluster) -> list[bytes]:
    """What must not be heard: the root key, and keys that come from it."""
    keys = [cluster.keyring.admin(), cluster.keyring.agent("agent-0")]
    found = [bytes.fromhex(cluster.key), cluster.key.encode(), *(one.key for one in keys)]
    return [*found, *(one.key.hex().encode() for one in keys)]


def check_heard(cluster: LocalCluster, heard: list[bytes]) -> None:
    for said in heard:
        assert not any(key in said for key in secrets_of(cluster))
        assert b"proof" not in said, "nobody has proved itself to a stranger"
        assert not cluster.authority or cluster.authority.key not in said


def test_at_the_doors_for_agents(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    client.write("/before", content(4 * MIB))
    doors = Doors(cluster, VICTIM)
    with Stranger(grpc=doors.grpc, lane=doors.lane) as stranger:
        assert stranger.begun["uid"] == NOBODY
        wait_until_down(cluster, VICTIM)
        client.write("/meanwhile", content(4 * MIB, "meanwhile"))
        assert client.read("/before") == content(4 * MIB)
        with pytest.raises((Unauthorized, OSError)):
            cluster.run(call_lane(cluster, doors.lane))
        eventually(lambda: stranger.heard()["lane"] and any(stranger.heard()["lane"]))
        if not cluster.settings.tls:
            eventually(lambda: len(stranger.heard()["grpc"]) > 5)
        heard = stranger.heard()
    assert heard["messages"] == []
    check_heard(cluster, heard["lane"] + heard["grpc"])
    if cluster.settings.tls:
        assert heard["grpc"] == [], "not even a name"
        assert all(said.startswith(b"\x16\x03") for said in heard["lane"]), "TLS's first words"
    cluster.run(replay_calls(cluster, heard["grpc"][:5]))
    cluster.run(replay_lanes(cluster, heard["lane"]))
    client.write("/after", b"1")


async def call_lane(cluster: LocalCluster, port: int) -> None:
    visitor = Visitor(
        credential=cluster.keyring.agent(f"agent-{WITNESS}"),
        slot=VICTIM,
        sender=WITNESS,
        address=cluster.nodes[WITNESS].address,
        tls=cluster.nodes[WITNESS]._tls,
    )
    await open_lane("127.0.0.1", port, visitor, lambda: None)


async def replay_calls(cluster: LocalCluster, heard: list[bytes]) -> None:
    for said in heard:
        _, pairs = msgspec.msgpack.decode(said)
        metadata = tuple((key, value) for key, value in pairs)
        proofs = tuple((PROOF_KEY, value) for _, value in pairs if isinstance(value, bytes))
        for slot in (0, 6):
            address = cluster.nodes[slot].address
            await refused_with(address, KNOCK_METHOD, metadata)
            for method in METHODS:
                code = await refused_with(address, method, (*metadata, *proofs))
                assert code is grpc.StatusCode.UNAUTHENTICATED


async def replay_lanes(cluster: LocalCluster, heard: list[bytes]) -> None:
    """Of the answer nothing may be a welcome; with TLS there is none but TLS's own."""
    for said in heard:
        for slot in (0, 1):
            door = cluster.nodes[slot].doors.server._lanes
            before = len(door._open) - len(door._strangers)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", door.address.rpartition(":")[2]
            )
            writer.write(said + said)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(10.0):
                    assert b"\x00\x00\x00\x01\x01" not in await reader.read()
            writer.close()
            assert len(door._open) - len(door._strangers) <= before


def test_at_the_doors_for_clients(cluster: LocalCluster, connect: Connect, public: Path) -> None:
    client = connect(cluster)
    client.write("/q/a", b"1")
    doors = Doors(cluster, VICTIM)
    decoy = str(public / "agent.sock")
    address = format_address("127.0.0.1", doors.gateway)
    known = descriptor.load(cluster.settings.name)
    token = cluster.keyring.client("q", paths=["/q"])
    mine = msgspec.structs.replace(known, key="", authority_key="", token=token.token)
    with Stranger(gateway=doors.gateway, socket=decoy) as stranger:
        assert stranger.begun == {"uid": NOBODY, "socket": ""}
        places = [Peer(VICTIM, address, "", "here", True)]
        if not cluster.settings.tls:  # Sockets are never encrypted; the handshake must do.
            places.append(Peer(VICTIM, "", decoy, "here", True))
        for who in (known, mine):
            for place in places:
                where = f"the process at {place.gateway or place.socket} is not an agent"
                with pytest.raises(Unauthorized, match=where):
                    Greeter(who).connect(place, client="t", deadline=time.monotonic() + 20)
        with connect(cluster, token=token.token) as bound:
            assert bound.read("/q/a") == b"1", "it goes to another"
        heard = stranger.heard()
    said = [one for one in heard["gateway"] + heard["socket"] if one]
    assert len(said) >= 2 * len(places)
    check_heard(cluster, said)
    assert not any(token.key in one or token.token.encode() in one for one in said)
    for one in said:
        replay_at_gateways(cluster, one)


def replay_at_gateways(cluster: LocalCluster, said: bytes) -> None:
    stat = pack_head(Kind.STAT, 9, m.encode(m.Stat("/q/a")), version=VERSION)
    for slot in (0, 1):
        node = cluster.nodes[slot]
        for family, place in (
            (socket.AF_UNIX, node.settings.socket_path),
            (socket.AF_INET, ("127.0.0.1", int(node.gateway_address.rpartition(":")[2]))),
        ):
            answered = b""
            with closing(socket.socket(family)) as thief, suppress(OSError):
                thief.settimeout(10.0)
                thief.connect(place)
                thief.sendall(said + stat)
                while piece := thief.recv(65536):
                    answered += piece
            assert b"data_shards" not in answered, "no welcome"
            assert b'"size"' not in answered, "no answer"


def test_another_user_cannot_take_the_place_of_a_dead_agents_socket(
    cluster: LocalCluster,
) -> None:
    doors = Doors(cluster, VICTIM)
    with Stranger(socket=doors.socket) as stranger:
        assert stranger.begun == {"uid": NOBODY, "socket": "PermissionError"}
    living = cluster.nodes[0].settings.socket_path
    assert connects(living, "")
    assert not connects(living, f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})")


def connects(path: str, first: str) -> bool:
    """Whether a process can connect to a socket after it has done something else first."""
    program = f"import os, socket; {first}; socket.socket(socket.AF_UNIX).connect({path!r})"
    command = [sys.executable, "-c", program.replace("; ;", ";")]
    done = subprocess.run(command, stderr=PIPE, check=False)
    assert done.returncode == 0 or b"PermissionError" in done.stderr
    return done.returncode == 0
