"""A cluster that has a tier, between two lives: drained, ended, and remembered for a restore.

Owns what `down` leaves of it, which is a descriptor with its keys and no agents, and what `up
--restore` takes from there. Whatever a descriptor knew before a restore fails is kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from diskless.client import Client, connect, descriptor
from diskless.client.descriptor import Descriptor
from diskless.errors import ClusterExists, DisklessError, FilesExist, Unavailable
from diskless.launch.record import advice_for_dead, name_option, tier_of
from diskless.operate.running import ask_status
from diskless.protocol.tier import Flushed

ASK_TIMEOUT_S = 20.0
"""How long a cluster may take to say how it is before it counts as gone for good."""


def drain(known: Descriptor, progress: Callable[[Flushed], None] | None) -> None:
    """Returns when the tier has all that the cluster holds, and nothing is changed any more.

    Writers continue for as long as most of it takes. Raises TierBehind if the tier does not move;
    FilesExist if the cluster does not answer. Then the cluster continues as before, if it can.
    """
    name = name_option(known.name)
    try:
        with connect(known.name, timeout_s=ASK_TIMEOUT_S) as client:
            client.tier.flush(progress=progress)
            with _closed(client):
                client.tier.flush(progress=progress)
    except Unavailable as error:
        raise FilesExist(
            f"cluster {known.name!r} does not answer, so what is not in its tier yet cannot be "
            f"brought there ({error.reason}): {advice_for_dead(known)}; "
            f"`diskless down --discard{name}` loses it"
        ) from error


@contextmanager
def _closed(client: Client) -> Iterator[None]:
    """It stays closed, unless something goes wrong within."""
    try:
        client.tier.close()
        yield
    except BaseException:  # whoever gives up with Ctrl-C, too
        with suppress(DisklessError):
            client.tier.close(closed=False)
        raise


def park(known: Descriptor) -> Descriptor:
    """What is kept of a cluster that has ended: its name, keys and settings."""
    parked = replace(known, gateways=[], ray={}, parked=True)
    descriptor.save(parked)
    return parked


def unpark(known: Descriptor, begun: Descriptor) -> Descriptor:
    """A new life of a cluster, with the keys of its last one."""
    return replace(
        begun,
        cluster=known.cluster,
        key=known.key,
        authority=known.authority,
        authority_key=known.authority_key,
        by_host=known.by_host,
    )


def refuse_alive(known: Descriptor) -> None:
    """Raises ClusterExists if a cluster of that name still answers, or may: a restore is for one
    whose agents are gone."""
    if known.parked or not known.gateways:
        return
    try:
        ask_status(known, timeout_s=ASK_TIMEOUT_S)
    except Unavailable:
        return
    except DisklessError as error:
        raise ClusterExists(
            f"cluster {known.name!r} may be alive ({error.reason}: {error}): end it with "
            f"`diskless down{name_option(known.name)}` first, or choose another --name"
        ) from error
    drained = f", which brings all of it to {tier}," if (tier := tier_of(known)) else ""
    raise ClusterExists(
        f"cluster {known.name!r} is alive: end it with "
        f"`diskless down{name_option(known.name)}`{drained} first, or choose another --name"
    )
