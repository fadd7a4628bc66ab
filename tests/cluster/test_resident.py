"""What agents really take: the resident memory of processes under floods, with little memory.

An agent may take 1.25 times its `--memory`, and what it takes when it is idle.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from diskless.client import Client
from diskless.config import MIB, ClusterSettings, Tuning
from diskless.errors import CapacityExceeded
from diskless.model import Extent
from diskless.protocol import messages as m
from diskless.protocol.frames import pack_header
from diskless.protocol.messages import Kind
from tests.agent_process import ProcessCluster
from tests.support import content, eventually, is_whole
from tests.unit.fake_cluster import RawClient

AGENTS, K = 4, 1
MEMORY_BYTES = 64 * MIB
DATA_MEMORY_BYTES = 128 * MIB
"""Where much is stored and rebuilt, gRPC's buffers and what the heap loses take 25 MiB more."""
BOUND = 1.25
TUNING = Tuning(free_delay_s=0.5, repair_delay_s=1.0, janitor_interval_s=0.2)


@contextmanager
def start(memory_bytes: int) -> Iterator[ProcessCluster]:
    settings = ClusterSettings(
        name="resident",
        agents=AGENTS,
        data_shards=2,
        parity_shards=K,
        memory_bytes=memory_bytes,
        cache="25%",
        tuning=TUNING,
    )
    with ProcessCluster(settings) as running:
        yield running


def check_resident(cluster: ProcessCluster) -> None:
    for slot, agent in cluster.agents.items():
        grown = agent.resident_bytes_most - cluster.idle_bytes
        assert grown <= BOUND * cluster.settings.memory_bytes, (
            f"agent-{slot} grew by {grown / MIB:.0f} MiB"
        )


def until_refused(write: Callable[[int], object]) -> int:
    """How often it could be done before there was no room for it."""
    done, refusal = 0, ""
    while not refusal:
        try:
            write(done)
        except CapacityExceeded as error:
            refusal = str(error)
        else:
            done += 1
    assert "delete files" in refusal
    assert "--memory" in refusal
    return done


FLOODS: dict[str, Callable[[Client, int], object]] = {
    "empty files": lambda client, n: client.write_many({f"/{n}/{i}": b"" for i in range(1000)}),
    "data": lambda client, n: client.write(f"/{n}", content(4 * MIB, n % 3)),
    "long names": lambda client, n: client.write_many(
        {f"/{n}/{'x' * 2000}{i}": b"" for i in range(300)}
    ),
    "small files": lambda client, n: client.write_many(
        {f"/{n}/{i}": content(1500, i) for i in range(80)}
    ),
    "directories": lambda client, n: client.write(f"/{n}" + "/dir" * 800 + "/file", b""),
}
FEW = ("empty files", "data")


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(f, marks=pytest.mark.slow) for f in FLOODS if f not in FEW)]
)
def test_a_flood_leaves_an_agent_within_its_memory_and_a_loss_is_repaired(
    name: str,
) -> None:
    with start(DATA_MEMORY_BYTES if name == "data" else MEMORY_BYTES) as cluster:
        client = cluster.connect()
        assert until_refused(lambda number: FLOODS[name](client, number)) > 2
        check_resident(cluster)
        cluster.kill(1)
        with suppress(CapacityExceeded):
            FLOODS[name](client, 100_001)  # It goes on meanwhile.
        cluster.revive(1)
        eventually(lambda: is_whole(client, AGENTS), 60.0)
        check_resident(cluster)
        assert client.delete("/0", recursive=True)


def test_clients_that_ask_and_never_fetch_leave_an_agent_within_its_memory() -> None:
    """Sixty of them, for files and for listings."""
    with start(MEMORY_BYTES) as cluster:
        never_fetch(cluster)


def never_fetch(cluster: ProcessCluster) -> None:
    client = cluster.connect()
    data = content(8 * MIB)
    client.write("/data", data)
    client.write_many({f"/many/{'n' * 150}{n}": b"" for n in range(3000)})
    extents = _extents_of(client)
    read = m.encode(m.Read(extents))
    listing = m.encode(m.List("/many", "", 5000))
    with ExitStack() as stack:
        for number in range(60):
            wire = RawClient(cluster.socket_of(0), credential=cluster.keyring.admin())
            stack.callback(wire.close)
            wire.socket.settimeout(5.0)
            kind, meta = (Kind.LIST, listing) if number % 2 else (Kind.READ, read)
            frames = (pack_header(kind, 2, meta_bytes=len(meta)) + meta) * 100
            with suppress(OSError):
                wire.socket.sendall(frames)
        assert client.read("/data") == data  # They do not keep others from being served.
        check_resident(cluster)
    assert client.read("/data") == data


def _extents_of(client: Client) -> list[Extent]:
    reply = client._caller.call(Kind.OPEN, m.Open("/data", 0, False), what="open")
    return list(reply.meta.extents)[:3]
