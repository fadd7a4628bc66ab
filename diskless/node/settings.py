"""What an agent is told when it starts."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from diskless.agent.replica import read_clock_ms
from diskless.config import ClusterSettings, TierSettings
from diskless.identity.certificates import Certificates
from diskless.identity.claims import Keyring

GATEWAY_PORTS = range(20_000, 32_000)


def read_wall_ms() -> int:
    return time.time_ns() // 1_000_000


def gateway_port(cluster_id: str, slot: int) -> int:
    """The port that a slot's gateway would like, in all its lives: whoever was told where it
    is, as Spark's executors are, finds it again. Below those that systems give away."""
    digest = xxh3_64_intdigest(f"{cluster_id}/{slot}".encode())
    return GATEWAY_PORTS[digest % len(GATEWAY_PORTS)]


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What an agent is told when it starts, and its clocks."""

    cluster: ClusterSettings
    cluster_id: str
    key: str
    """The cluster's root key, in hex."""
    slot: int
    socket_path: str
    bind_host: str = "127.0.0.1"
    """Address that other agents and clients reach it at."""
    failure_domain: str = "localhost"
    node: str = ""
    seeds: Mapping[int, str] = field(default_factory=dict)
    """gRPC addresses of other slots, as far as they are known."""
    wall_ms: Callable[[], int] = read_wall_ms
    now_s: Callable[[], float] = time.monotonic
    clock_ms: Callable[[], int] = read_clock_ms
    """Its other clocks: for what waits, and the voter's."""
    audit_dir: str = ""
    """Where its audit file is; it has none if this is empty."""
    tls: Certificates | None = None
    """What this agent shows of itself at its TCP doors; None if they are not encrypted."""
    tier: TierSettings | None = None
    """The tier that the cluster begins with; which one it has later the namespace says."""

    @property
    def epoch(self) -> int:
        """Which life of the cluster this is; 0 if it began empty."""
        return self.tier.restored_epoch if self.tier is not None else 0

    @property
    def keyring(self) -> Keyring:
        return Keyring.from_hex(self.cluster_id, self.key)
