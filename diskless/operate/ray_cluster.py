"""A cluster on Ray: `up`, `down`, `kill` and `revive`.

Owns the order of things and the descriptor. `up` writes the descriptor before it starts
anything, without gateways, and completes it when every agent serves: so whatever `up`
left when it was killed half way, `down` finds and ends. If `up` fails it does so itself.
A namespace is formed here, once in a cluster's life, and nowhere else.
"""

import dataclasses
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings
from diskless.errors import (
    BadRequest,
    ClusterExists,
    DisklessError,
    FilesExist,
    LaunchFailed,
)
from diskless.identity import keyfile
from diskless.identity.certificates import make_authority
from diskless.identity.claims import make_root
from diskless.launch import certify, private_ray, ray_link, rundir, seats, tiers
from diskless.launch.model import AgentState, Identity, Process
from diskless.launch.record import (
    RayRecord,
    advice_for_dead,
    record_of,
    refuse_dead,
    refuse_without_key,
    refuse_without_ray,
    tier_of,
)
from diskless.launch.signals import RaySignals
from diskless.model import check_slots, slot_name
from diskless.operate import ending, parking, running
from diskless.operate.running import Progress, Started
from diskless.protocol.messages import Peer

if TYPE_CHECKING:
    from diskless.protocol.tier import Flushed
    from diskless.tier.restore import At

LOCK_TIMEOUT_S = 120.0
LOCK_POLL_S = 0.1


def up(
    settings: ClusterSettings,
    *,
    ray_address: str = "",
    reset: bool = False,
    restore: "At | None" = None,
    progress: Progress | None = None,
) -> Started:
    """Starts a cluster and returns when every agent serves and sees all others; or adds
    agents, or a tier, to one that runs. With `restore` it begins with what its tier holds.

    Raises BadSettings before anything starts, and whatever is wrong with its tier;
    ClusterExists if it runs with other settings, or more agents; Unavailable if it is known
    here but dead, unless `reset` may replace it, or a restore bring it back; FilesExist if
    that would destroy files of a cluster that is alive; LaunchFailed.
    """
    settings.validate()
    if settings.tls_cert:
        certify.own_pair(settings)
    if ray_address:
        ray_link.check_address(ray_address)
    with alone():
        exists = descriptor.descriptor_path(settings.name).exists()
        known = descriptor.load(settings.name) if exists else None
        if restore is not None:
            return _restore(settings, ray_address, known, restore, progress or _silent)
        if known is not None and reset:
            refuse_without_ray(known)
            refuse_without_key(known)
            ending.refuse_to_reset(known)
            ending.end(known)
        elif known is not None:
            refuse_without_key(known)
            return running.join(known, settings, ray_address, progress or _silent)
        cluster = secrets.token_hex(8)
        fresh = _describe(settings, ray_address, cluster)
        if settings.tier:
            fresh = replace(fresh, tier=dataclasses.asdict(tiers.check(settings, cluster)))
        return _start(fresh, None, progress or _silent)


def down(
    name: str, *, discard: bool = False, draining: "Callable[[Flushed], None] | None" = None
) -> bool:
    """Ends a cluster and all that `up` started for it, also if it is half dead. With a tier it
    first brings everything there, and tells `draining` how far it is; then its descriptor stays,
    for a restore. Whether it does.

    Raises NoCluster; FilesExist, unless it may discard what the cluster holds; TierBehind.
    """
    with alone():
        known = descriptor.load(name)
        refuse_without_ray(known)
        refuse_without_key(known)
        if known.parked:
            if not discard:
                raise FilesExist(
                    f"cluster {name!r} is down already, and in its tier: {advice_for_dead(known)}"
                )
            descriptor.remove(name)
            return False
        keeps = not discard and bool(tier_of(known)) and bool(known.gateways)
        if keeps:
            parking.drain(known, draining)
        elif not discard:
            ending.refuse_to_lose(known)
        ending.end(known)
        if keeps:
            parking.park(known)
        return keeps


def kill(name: str, slots: Sequence[int], *, stay_dead: bool = False) -> list[Process]:
    """SIGKILLs agents, all at once; Ray restarts them unless they shall stay dead.

    Raises BadRequest for a slot that is unknown or not running.
    """
    with attached(name, slots) as identity:
        from diskless.launch import agents

        running = agents.processes(identity)
        for slot in slots:
            if slot not in running:
                raise BadRequest(
                    f"{slot_name(slot)} is not running: `diskless chaos revive {slot}` starts it"
                )
        victims = [running[slot] for slot in slots]
        agents.kill(identity, victims, stay_dead=stay_dead)
        return victims


def revive(
    name: str, slots: Sequence[int], *, progress: Progress | None = None
) -> list[AgentState]:
    """Starts dead agents again, with empty memories, and waits until they serve.

    One that runs, or that Ray is restarting, is only waited for. Raises BadRequest for
    an unknown slot, LaunchFailed.
    """
    with attached(name, slots) as identity:
        from diskless.launch import agents

        chosen = agents.seats_for(identity, agents.vacant(identity, slots))
        agents.create(identity, chosen, founding=False)
        states = agents.wait_serving(
            identity, slots, ready=lambda state: state.joined, progress=progress or _silent
        )
        there = agents.reachable(identity, range(identity.settings.agents))
        _wait_all_seen(identity, there, progress or _silent)
        return [states[slot] for slot in slots]


# Starting.


def _describe(settings: ClusterSettings, ray_address: str, cluster: str) -> Descriptor:
    """A new cluster, with keys of its own."""
    return Descriptor(
        cluster=cluster,
        name=settings.name,
        key=make_root().hex(),
        settings=settings.to_dict(),
        ray=RayRecord(requested=ray_address).to_dict(),
    )


def _restore(
    settings: ClusterSettings,
    ray_address: str,
    known: Descriptor | None,
    at: "At",
    progress: Progress,
) -> Started:
    """With the keys of the cluster as it is known here: its tokens stay good, and those who
    began before can tell what happened."""
    if known is not None:
        refuse_without_key(known)
        parking.refuse_alive(known)
    tiers.check_restore(settings, at)
    begun = _describe(settings, ray_address, secrets.token_hex(8))
    if known is not None:
        if not known.parked:
            ending.end(known)
        begun = parking.unpark(known, begun)
    try:
        return _start(begun, at, progress)
    except BaseException:
        if known is not None:  # Its keys must not go with what failed.
            parking.park(replace(known, settings=known.settings | settings.tier_fields))
        raise


def _start(known: Descriptor, restore: "At | None", progress: Progress) -> Started:
    descriptor.save(known)
    try:
        record = _find_ray(known, progress)
        advice = [] if record.own else _check_ray(known.name)
        known = _with_ray(known, record)  # From here on something of ours may be in it.
        restoring = None
        if restore is not None:
            settings = ClusterSettings.from_dict(known.settings)
            restoring = tiers.take_over(settings, known.cluster, restore)
            known = replace(known, tier=dataclasses.asdict(restoring.tier))
            descriptor.save(known)
        return _start_agents(known, restoring, advice, progress)
    except BaseException:
        with suppress(DisklessError):  # What is left, `down` can find by the descriptor.
            ending.end(descriptor.load(known.name))
        raise
    finally:
        ray_link.detach()


def _find_ray(known: Descriptor, progress: Progress) -> RayRecord:
    """Starts a Ray of our own, or takes the user's; either way we are connected to it."""
    record = record_of(known)
    if record.own:
        progress("Ray", 0, 1)
        directory = rundir.make_run_dir(known.cluster)
        token = descriptor.home() / f"{known.name}.token"
        private_ray.write_token(token)
        record = private_ray.spawn(directory, token)
        _with_ray(known, record)
        address = private_ray.wait_ready(record, directory)
        progress("Ray", 1, 1)
    else:
        address = ""
    record = replace(record, address=address)
    ray = ray_link.attach(record, f"diskless-{known.name}")
    return replace(record, address=ray_link.address_of(ray))


def _with_ray(known: Descriptor, record: RayRecord) -> Descriptor:
    known = replace(known, ray=record.to_dict())
    descriptor.save(known)
    return known


def _start_agents(
    known: Descriptor,
    restoring: tiers.Restoring | None,
    advice: list[str],
    progress: Progress,
) -> Started:
    from diskless.launch import agents, spread

    nodes = spread.living_nodes()
    one_host = seats.on_one_host(spread.registered_nodes())
    known = _with_ray(known, replace(record_of(known), one_host=one_host))
    known = _with_authority(known, one_host=one_host)
    identity = agents.identity_of(known)
    settings = identity.settings
    rundir.make_run_dir(known.cluster)
    keyfile.write(rundir.key_path(known.cluster), identity.keys)
    chosen = seats.assign(range(settings.agents), nodes)
    agents.create(identity, chosen, founding=True)
    progress("agents", 0, settings.agents)
    founders = agents.wait_serving(
        identity,
        range(settings.agents),
        ready=lambda state: bool(state.address),
        progress=_silent,
    )
    agents.form(identity, founders, progress)
    states = _wait_all_seen(identity, range(settings.agents), progress)
    known = replace(known, gateways=[_peer(states[slot]) for slot in sorted(states)])
    descriptor.save(known)
    advice = advice + seats.advise(settings, [state.host for state in states.values()])
    return Started(
        descriptor=known, fresh=True, agents_up=len(states), advice=advice, restored=restoring
    )


def _with_authority(known: Descriptor, *, one_host: bool) -> Descriptor:
    """TLS is decided here: unless somebody has, it is on where packets leave a host."""
    settings = ClusterSettings.from_dict(known.settings)
    if settings.tls is None:
        encrypted = not one_host or bool(settings.tls_cert)
        settings = dataclasses.replace(settings, tls=encrypted)
    known = replace(known, settings=settings.to_dict())
    if settings.tls and settings.tls_cert:
        authority = certify.own_authority(settings).decode()
        known = replace(known, authority=authority, by_host=True)
    elif settings.tls and not known.authority_key:
        pair = make_authority(known.name, known.cluster)
        known = replace(known, authority=pair.chain.decode(), authority_key=pair.key.decode())
    descriptor.save(known)
    return known


def _check_ray(name: str) -> list[str]:
    """Whether somebody else's Ray will do, and what is wrong with it for agents."""
    from diskless.launch import agents, probe, spread

    if agents.is_taken(name):
        raise ClusterExists(
            f"this Ray runs a cluster {name!r} already that is not known here: choose "
            "another --name, or bring its descriptor"
        )
    return probe.warnings_about(probe.probe_nodes(spread.living_nodes()))


def _wait_all_seen(
    identity: Identity, slots: Sequence[int], progress: Progress
) -> dict[int, AgentState]:
    """Each of them sees as many as they are: then each may take writes."""
    from diskless.launch import agents

    return agents.wait_serving(
        identity,
        slots,
        ready=lambda state: state.joined and state.sees >= len(slots),
        progress=progress,
    )


def _peer(state: AgentState) -> Peer:
    return Peer(
        slot=state.slot, gateway=state.gateway, socket=state.socket, host=state.host, up=True
    )


# Shared.


@contextmanager
def attached(name: str, slots: Sequence[int]) -> Iterator[Identity]:
    """Connects to the Ray of a cluster, if it has those slots."""
    known = descriptor.load(name)
    refuse_without_ray(known)
    refuse_dead(known)
    check_slots(slots, agents=ClusterSettings.from_dict(known.settings).agents)
    ray_link.attach(record_of(known), f"diskless-{name}")
    try:
        from diskless.launch.agents import identity_of

        yield identity_of(known)
    finally:
        ray_link.detach()


@contextmanager
def signals_to(name: str) -> Iterator[RaySignals]:
    """What its methods raise beside their own: Unavailable, BadRequest without a Ray."""
    with ExitStack() as until_closed:
        yield RaySignals(lambda: until_closed.enter_context(attached(name, ())))


@contextmanager
def alone() -> Iterator[None]:
    """One `up` or `down` of this user at a time; the lock leaves no file behind."""
    home = descriptor.home()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    end_s = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise LaunchFailed(
                        "another `diskless up` or `down` is under way: wait until it is done"
                    ) from None
                time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(handle)


def _silent(_what: str, _done: int, _total: int) -> None:
    pass
