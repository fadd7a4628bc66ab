"""What a descriptor remembers of the Ray that runs its cluster, to find and stop it.

Knows no Ray and imports little: every CLI verb looks here to tell a dead cluster from a
slow one.
"""

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from diskless.client.descriptor import DEFAULT_NAME, Descriptor
from diskless.errors import BadRequest, Unavailable


class Session(Struct, frozen=True):
    """A process that leads a session of its own, and when it began: see `sessions`."""

    pid: int = 0
    since_boot_s: float | None = None
    """How long after the boot it began; None where that was not noted. Not a time of day: those of
    all processes move when the clock is set."""
    boot: str = ""
    """What numbered it: see `boot_id`."""

    @property
    def of_this_boot(self) -> bool:
        """False if it has surely ended, and its number may mean anybody."""
        return self.boot in ("", boot_id())


class RayRecord(Struct, frozen=True, kw_only=True):
    requested: str = ""
    """As `up` was told: `auto`, host:port, or "" for a Ray of the cluster's own."""
    address: str = ""
    """host:port of Ray's control store; "" until Ray has started."""
    host: str = ""
    """Where `up` ran, and with it the Ray that it started."""
    holder: Session = Session()
    """Our own Ray: all its processes are in this session."""
    token: str = ""
    """File with the token that our own Ray demands."""
    one_host: bool = False
    """`up` found one host, so agents listen on loopback only, in all their lives."""
    adopting: bool = False
    """When it was last adopted, agents still ran under an earlier Ray."""

    @property
    def own(self) -> bool:
        return not self.requested

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


def boot_id() -> str:
    """What gives processes their numbers: this boot, and in it the namespace of a container.

    "" where that cannot be told.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def refuse_dead(descriptor: Descriptor) -> None:
    """Raises Unavailable, with what to do, if the cluster surely serves no more."""
    if descriptor.parked:
        raise Unavailable(
            f"cluster {descriptor.name!r} is down, and all of it is in its tier: "
            f"{advice_for_dead(descriptor)}"
        )
    if descriptor.ray and not descriptor.gateways:
        raise Unavailable(
            f"cluster {descriptor.name!r} never came up completely: {advice_for_dead(descriptor)}"
        )
    if descriptor.ray and has_ended(descriptor):
        raise Unavailable(
            f"cluster {descriptor.name!r} is dead (its Ray has ended): "
            f"{advice_for_dead(descriptor)}"
        )


def refuse_without_ray(descriptor: Descriptor) -> None:
    """Raises BadRequest for a cluster of `local_cluster`."""
    if not descriptor.ray and not descriptor.parked:
        raise BadRequest(f"cluster {descriptor.name!r} lives and ends in the process that made it")


def refuse_without_key(descriptor: Descriptor) -> None:
    """Raises Unauthorized where there is only a token, or nothing."""
    if not descriptor.key:
        _ = descriptor.keyring


def advice_for_dead(descriptor: Descriptor) -> str:
    name = name_option(descriptor.name)
    if tier := tier_of(descriptor):
        return (
            f"`diskless up --restore {tier}{name}` brings back what its tier has; "
            f"`diskless down --discard{name}` forgets the cluster"
        )
    return (
        f"run `diskless down --discard{name}`, then `diskless up`; or `diskless up --reset{name}`"
    )


def tier_of(descriptor: Descriptor) -> str:
    """The address of its tier; "" if it has none."""
    return str(descriptor.settings.get("tier", ""))


def name_option(name: str) -> str:
    """What a verb must be told to mean this cluster."""
    return "" if name == DEFAULT_NAME else f" --cluster {name}"


def record_of(descriptor: Descriptor) -> RayRecord:
    return msgspec.convert(descriptor.ray, RayRecord)


def has_ended(descriptor: Descriptor) -> bool:
    """Whether the cluster's own Ray surely runs no more; False when that is not known."""
    record = record_of(descriptor)
    if not record.own or not record.holder.pid or not record.here:
        return False
    if not record.holder.of_this_boot:
        return True
    try:
        os.kill(record.holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return True  # Its number has gone to a process of another user.
    return False
