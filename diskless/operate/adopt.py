"""Taking a cluster that outlived its Ray over to another one, without losing a byte.

When Ray's head is lost for good the agents continue, but nobody restarts them. They cannot be
handed to another Ray as they are; a slot can, by a new life that recovers from the others.
So hosts change over one at a time: each call here starts the slots that are down, on nodes
of the new Ray, tells them where the other agents are, and waits until the margin is k again.
"""

from collections.abc import Callable

from msgspec.structs import replace

from diskless.client import connect, descriptor
from diskless.client.descriptor import Descriptor
from diskless.errors import BadRequest
from diskless.launch import ray_link
from diskless.launch.record import RayRecord, record_of, refuse_without_key
from diskless.model import ClusterStatus, parse_slot
from diskless.operate import ray_cluster, rolling
from diskless.operate.ending import strangers_to
from diskless.protocol.messages import Peer

Progress = Callable[[str, int, int], None]


def adopt(name: str, ray_address: str, *, progress: Progress) -> tuple[list[int], list[int]]:
    """Starts what is down on the Ray at that address, which from now on is the cluster's.

    Gives the slots that were started, and those that still run under an earlier Ray. Raises
    BadRequest for a cluster with a Ray of its own, Unavailable, LaunchFailed.
    """
    ray_link.check_address(ray_address)
    known = descriptor.load(name)
    refuse_without_key(known)
    if not known.ray or record_of(known).own:
        raise BadRequest(
            f"cluster {name!r} has a Ray of its own on one host, which no other can replace"
        )
    with connect(name) as client:
        with ray_cluster.alone():  # An `up` that grows the cluster writes the descriptor too.
            started, strangers = _move(
                descriptor.load(name), client.status(), ray_address, progress
            )
        rolling.wait_protected(client, "until everything was protected again")
        return started, strangers


def _move(
    known: Descriptor, status: ClusterStatus, ray_address: str, progress: Progress
) -> tuple[list[int], list[int]]:
    record = RayRecord(requested=ray_address, one_host=record_of(known).one_host, adopting=True)
    ray = ray_link.attach(record, f"diskless-{known.name}")
    try:
        record = replace(record, address=ray_link.address_of(ray))
        known = replace(known, ray=record.to_dict())
        descriptor.save(known)
        known, started = _start(known, status, progress)
        strangers = strangers_to(known, status)
    finally:
        ray_link.detach()
    descriptor.save(replace(known, ray=replace(record, adopting=bool(strangers)).to_dict()))
    return started, strangers


def _start(
    known: Descriptor, status: ClusterStatus, progress: Progress
) -> tuple[Descriptor, list[int]]:
    from diskless.launch import agents

    identity = agents.identity_of(known)
    rows = {parse_slot(row.slot): row for row in status.agents}
    down = [slot for slot, row in rows.items() if row.state == "down"]
    missing = agents.vacant(identity, down)
    agents.create(
        identity,
        agents.seats_for(identity, missing, rows=status.agents),
        founding=False,
        seeds={slot: row.address for slot, row in rows.items() if slot not in down},
    )
    coming = agents.reachable(identity, down)  # One on a silent host may only be cut off.
    states = agents.wait_serving(
        identity, coming, ready=lambda state: state.joined, progress=progress
    )
    fresh = {
        slot: Peer(slot=slot, gateway=at.gateway, socket=at.socket, host=at.host, up=True)
        for slot, at in states.items()
    }
    peers = {peer.slot: peer for peer in known.gateways} | fresh
    return replace(known, gateways=[peers[slot] for slot in sorted(peers)]), coming
