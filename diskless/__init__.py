"""diskless: a checkpoint store for Apache Spark in the memory of its own nodes.

import diskless

store = diskless.connect()                  # the cluster that `diskless up` started
store.write("/models/a", b"...")
with store.open("/big", "wb") as file: ...
store.read("/models/a")

with diskless.local_cluster() as cluster:   # for tests and notebooks
    cluster.connect().write("/a", b"1")
"""

import importlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diskless.client.client import Client, connect
from diskless.config import ClusterSettings, Tuning, parse_bytes
from diskless.errors import DisklessError

if TYPE_CHECKING:
    from diskless.launch.local import LocalCluster

__version__ = "0.2.0"

__all__ = ["Client", "DisklessError", "connect", "local_cluster"]


def __getattr__(name: str) -> Any:
    """`diskless.spark` without importing it first; nobody else shall need pyspark."""
    if name != "spark":
        raise AttributeError(f"module 'diskless' has no attribute {name!r}")
    return importlib.import_module("diskless.spark")


def local_cluster(
    *,
    agents: int = 6,
    data_shards: int = 4,
    parity_shards: int = 2,
    memory: str = "256MiB",
    cache: str = "0",
    tls: bool = False,
    chaos: bool = False,
    tuning: Tuning | None = None,
    audit_dir: str = "",
    tier: str = "",
    restore: str = "",
    metrics_port: int = 0,
) -> "LocalCluster":
    """A cluster inside this process, for a `with` block; it ends with the block. Its agents
    write audit files if `audit_dir` says where. `tier` is the address of a durable tier, and
    `restore` of one that a cluster had before, which this one continues.

    `cache` is the part of the memory for copies of what its clients wrote or read last, "10%" for
    example. `tls` encrypts its TCP doors, `chaos` lets faults be planted in its agents. From
    `metrics_port` on agents serve metrics, if it is not 0. Raises BadSettings, in one line that
    says what to change.
    """
    from diskless.launch.local import LocalCluster  # gRPC is slow to import

    settings = ClusterSettings(
        name=f"local-{secrets.token_hex(4)}",
        agents=agents,
        data_shards=data_shards,
        parity_shards=parity_shards,
        memory_bytes=parse_bytes(memory),
        cache=cache,
        tls=tls,
        chaos=chaos,
        metrics_port=metrics_port,
    )
    chosen = replace(settings, tuning=tuning) if tuning else settings
    return LocalCluster(chosen, audit_dir=audit_dir, tier=tier, restore=restore)
