"""What the parts of `launch` tell each other of a cluster's agents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diskless.config import ClusterSettings, TierSettings
from diskless.identity.keyfile import Keys
from diskless.launch.seats import RayNode


class Identity(NamedTuple):
    """What all agents of a cluster have in common."""

    settings: ClusterSettings
    keys: Keys
    one_host: bool
    tier: TierSettings | None = None

    @property
    def cluster_id(self) -> str:
        return self.keys.cluster

    @property
    def namespace(self) -> str:
        return namespace_of(self.settings.name)


class Process(NamedTuple):
    """The process that an actor has now, according to Ray."""

    slot: int
    pid: int
    node: RayNode


def namespace_of(name: str) -> str:
    return f"diskless-{name}"


@dataclass(frozen=True, kw_only=True)
class AgentArgs:
    """What an agent is told, in every one of its lives."""

    settings: ClusterSettings
    cluster_id: str
    slot: int
    namespace: str
    """Ray namespace in which the other agents have their names."""
    one_host: bool
    """All agents are on one host: then nothing listens beyond loopback."""
    founding: bool
    """Its first life waits for `up` to form the cluster; others recover from it."""
    tier: TierSettings | None = None
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
    restored: float = 0.0
    """The part of the namespace that has come out of the tier."""
    error: str = ""
    wants_keys: bool = False
    """It needs a ticket; `error` says why, if it has had one."""
