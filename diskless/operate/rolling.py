"""Restarting agents of a cluster that serves, one after the other.

An agent is ended only while everything survives k losses, and the next one only when
that is so again: repair, not this module, brings it about.
"""

import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from diskless.client import Client, connect
from diskless.errors import BadRequest, DisklessError, LaunchFailed
from diskless.model import ClusterStatus, parse_slot, slot_name
from diskless.operate import ray_cluster

POLL_S = 0.2
PATIENCE_S = 600.0
"""How long a cluster may take to become protected, before or after a restart."""

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Restarted:
    slot: int
    incarnation: int
    took_s: float
    """Until the agent served again."""
    protected_s: float
    """Until everything survived k losses again."""


def restart(
    name: str, slots: Sequence[int] | None = None, *, progress: Progress
) -> list[Restarted]:
    """Restarts agents in the given order, or all of them with the leader last.

    `progress` is told how many are left. Raises LaunchFailed if the cluster does not
    become protected, BadRequest for an unknown slot.
    """
    with connect(f"diskless://{name}/") as client:
        left = _all(client)
        if slots is not None:
            for slot in slots:
                if slot not in left:
                    raise BadRequest(f"there is no {slot_name(slot)} in this cluster")
            left = list(slots)
        done: list[Restarted] = []
        while left:
            progress(len(left))
            _wait(
                client, ClusterStatus.is_protected, f"before {slot_name(left[0])} can be restarted"
            )
            done.append(_restart(name, client, left.pop(0)))
        progress(0)
        return done


def _all(client: Client) -> list[int]:
    """Every slot; the leader last, so that the namespace changes hands once."""
    status = client.status()
    leader = parse_slot(status.leader)
    slots = range(len(status.agents))
    return sorted(slots, key=lambda slot: slot == leader)


def _restart(name: str, client: Client, slot: int) -> Restarted:
    before = client.status().agents[slot].incarnation

    def is_back(status: ClusterStatus) -> bool:
        agent = status.agents[slot]
        return agent.is_there() and agent.incarnation > before

    began_s = time.monotonic()
    ray_cluster.kill(name, [slot])
    _wait(client, is_back, f"until {slot_name(slot)} serves again")
    took_s = time.monotonic() - began_s
    status = _wait(client, ClusterStatus.is_protected, f"after {slot_name(slot)} was restarted")
    return Restarted(
        slot=slot,
        incarnation=status.agents[slot].incarnation,
        took_s=took_s,
        protected_s=time.monotonic() - began_s,
    )


def wait_protected(client: Client, why: str) -> None:
    """Returns when everything survives k losses. Raises LaunchFailed if that never comes."""
    _wait(client, ClusterStatus.is_protected, why)


def wait_expendable(client: Client, pids: Collection[int], why: str) -> None:
    """Returns when all agents among this host's processes `pids` may be ended at once, after
    which everything is still there. Raises LaunchFailed if that never comes."""
    _wait(client, lambda status: may_end(status, pids, socket.gethostname()), why)


def may_end(status: ClusterStatus, pids: Collection[int], hostname: str) -> bool:
    """Whether a status says that the agents among these processes of a host may end at once:
    k of them may, and more if they lie together, as far as a whole host may."""
    ending = sum(
        agent.pid in pids and agent.host.split("/", 1)[0] == hostname
        for agent in status.agents
        if agent.is_there()
    )
    return status.is_protected() and (ending <= status.margin or status.margin_hosts > 0)


def _wait(client: Client, reached: Callable[[ClusterStatus], bool], why: str) -> ClusterStatus:
    """The status that `reached` wants. The cluster may be silent while a leader is elected."""
    deadline_s = time.monotonic() + PATIENCE_S
    seen = "it does not answer"
    while time.monotonic() < deadline_s:
        try:
            status = client.status()
        except DisklessError as error:
            seen = str(error)
        else:
            if reached(status):
                return status
            repair = status.repair
            seen = (
                f"margin {status.margin} of {status.parity_shards}, "
                f"{repair.stripes_left} stripes left to repair, {repair.lost} lost"
            )
        time.sleep(POLL_S)
    raise LaunchFailed(f"waited {PATIENCE_S:g} s {why}: {seen}")
