"""Which Ray node an agent gets, at first and when its own is gone: pure choices.

A host gets a second agent only when every host has one. A slot is *homeless* when its
agent has been down beyond the repair delay and Ray no longer has the node that it was on:
one that Ray can restart where it was, or that somebody ended on purpose, is none.
"""

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from diskless.config import ClusterSettings, format_bytes
from diskless.model import AgentInfo, AgentStatus, parse_slot


class RayNode(NamedTuple):
    id: str
    hostname: str
    address: str
    port: int = 0
    """Of its raylet."""
    started_ms: int = 0

    @property
    def host(self) -> str:
        """As agents name their failure domain."""
        return f"{self.hostname}/{self.address}"

    @property
    def here(self) -> bool:
        return self.hostname == socket.gethostname()


def on_one_host(nodes: Iterable[RayNode]) -> bool:
    return len({node.host for node in nodes}) == 1


def assign(
    slots: Iterable[int],
    nodes: Sequence[RayNode],
    *,
    taken: Iterable[RayNode] = (),
    per_host_max: int | None = None,
) -> dict[int, RayNode]:
    """A node for each slot: on the host with the fewest agents, there on the emptiest node.

    `taken` has the node of every other agent. Slots for which there is none, because every
    host has `per_host_max` agents, are left out; those named first come first.
    """
    on_node = Counter(node.id for node in taken)
    on_host = Counter(node.host for node in taken)
    chosen: dict[int, RayNode] = {}
    for slot in slots:
        open_ = [n for n in nodes if per_host_max is None or on_host[n.host] < per_host_max]
        if not open_:
            break
        best = min(open_, key=lambda node: (on_host[node.host], on_node[node.id], node.id))
        on_node[best.id] += 1
        on_host[best.host] += 1
        chosen[slot] = best
    return chosen


@dataclass(frozen=True, kw_only=True)
class Rehosting:
    """What to do about the agents whose nodes are gone."""

    moves: Mapping[int, RayNode]
    homeless: Sequence[int]
    """No node has room for these."""


def plan_rehosting(
    agents: Mapping[int, AgentInfo],
    *,
    overdue: Collection[int],
    nodes: Sequence[RayNode],
    under_way: Mapping[int, RayNode | None],
    unfit: Collection[str] = (),
    one_host: bool = False,
) -> Rehosting:
    """Where slots that are down for too long begin again, voters first.

    `under_way` are the slots that Ray has an actor for, and the node that it is on, if it
    is on one: they are left alone. Nodes in `unfit` are passed over. With `one_host` nothing
    listens beyond loopback, so another host is of no use. Otherwise no host gets more
    agents than some host was given by `up`.
    """
    by_id = {node.id: node for node in nodes}
    gone = sorted(
        slot for slot in overdue if agents[slot].node not in by_id and slot not in under_way
    )
    settled = [_node_of(a.node, a.host, by_id) for a in agents.values() if a.up or a.node in by_id]
    coming = [
        node
        for slot, node in under_way.items()
        if node is not None and agents[slot].node not in by_id
    ]
    # Apart: the place of one that is gone may be another's by now, and was not given twice.
    most = max(
        [
            *Counter(n.host for n in settled).values(),
            *Counter(agents[s].host for s in gone).values(),
        ],
        default=1,
    )
    hosts = {agent.host for agent in agents.values()}
    fit = [node for node in nodes if node.id not in unfit and (not one_host or node.host in hosts)]
    moves = assign(gone, fit, taken=[*settled, *coming], per_host_max=None if one_host else most)
    return Rehosting(moves=moves, homeless=[slot for slot in gone if slot not in moves])


def seated(rows: Iterable[AgentStatus], nodes: Iterable[RayNode]) -> dict[int, RayNode]:
    """The nodes of agents in `status`: also of those that Ray is about to restart, or that
    run under another Ray."""
    by_id = {node.id: node for node in nodes}
    return {
        parse_slot(row.slot): _node_of(row.node, row.host, by_id)
        for row in rows
        if row.is_there() or row.node in by_id
    }


def _node_of(id_: str, host: str, nodes: Mapping[str, RayNode]) -> RayNode:
    """Also one of a Ray which is not ours: an agent there takes its host's place."""
    known = nodes.get(id_)
    return known if known is not None else RayNode(id_, *host.split("/", 1))


def advise(settings: ClusterSettings, hosts: Sequence[str]) -> list[str]:
    """What an operator should know, given the host of each agent."""
    here = sum(host.split("/", 1)[0] == socket.gethostname() for host in hosts)
    memory_bytes = psutil.virtual_memory().total
    return _about_losses(settings, hosts) + _about_memory(settings, here, memory_bytes)


def _about_memory(settings: ClusterSettings, agents: int, memory_bytes: int) -> list[str]:
    """Whether a host has what its agents may use: where it has not, the kernel kills them."""
    wanted = agents * settings.memory_bytes
    if wanted <= memory_bytes:
        return []
    return [
        f"{_agents(agents)} on this host may use {format_bytes(wanted)}, and it has "
        f"{format_bytes(memory_bytes)}: choose a smaller --memory"
    ]


def _about_losses(settings: ClusterSettings, hosts: Sequence[str]) -> list[str]:
    k = settings.parity_shards
    counts = Counter(hosts)
    if len(counts) == 1:
        return [
            "failure domains are processes on one host: any "
            f"{_agents(k)} may die, but losing the host loses everything"
        ]
    worst = max(counts.values())
    if worst > k:
        return [
            f"{len(counts)} hosts for {len(hosts)} agents: a host has up to {worst} of them, "
            f"and only {k} may die at once: use more hosts, or a larger k"
        ]
    if worst > 1:
        return [f"a host has up to {worst} agents: {k // worst} of the hosts may die at once"]
    return []


def _agents(count: int) -> str:
    return "agent" if count == 1 else f"{count} agents"
