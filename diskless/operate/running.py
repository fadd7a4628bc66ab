"""`up` on a cluster that is there already: is it as asked, and does it lack agents.

A cluster only grows, and only in the number of its agents. New slots are in the descriptor
before anything is started, so whatever an `up` that was killed half way has left, `down`
ends and the next `up` finishes: it starts what has never joined and has no actor. New agents
never vote. Nothing here undoes anything: the cluster serves all the while.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from diskless.client import connect, descriptor
from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings
from diskless.errors import (
    ClusterExists,
    DeadlineExceeded,
    DisklessError,
    LaunchFailed,
    Unavailable,
)
from diskless.launch import ray_link, seats, tiers
from diskless.launch.record import (
    advice_for_dead,
    name_option,
    record_of,
    refuse_dead,
    refuse_without_ray,
    tier_of,
)
from diskless.model import CLOSED, AgentStatus, BalanceStatus, ClusterStatus, parse_slot
from diskless.protocol.messages import Peer

ASK_TIMEOUT_S = 5.0
"""How long a cluster may take to say how it is before it counts as dead."""

ATTACH_TIMEOUT_S = 30.0

BALANCE_WAIT_S = 5.0
"""How long `up` waits to learn how fast shards move to new agents."""
BALANCE_PAUSE_S = 0.25

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Started:
    """What `up` did."""

    descriptor: Descriptor
    fresh: bool
    """False if the cluster ran already."""
    agents_up: int
    added: list[int] = field(default_factory=list)
    """Slots that a running cluster did not have before."""
    advice: list[str] = field(default_factory=list)
    """What the operator should know: failure domains, and how Ray treats agents."""
    balance: BalanceStatus = field(default_factory=BalanceStatus)
    """What moves to new agents, and how fast."""
    tier_attached: bool = False
    """A cluster that ran has got a tier."""
    restored: tiers.Restoring | None = None


def settings_for(name: str, chosen: dict[str, Any], *, reset: bool) -> ClusterSettings:
    """What was chosen; the rest as it is if the cluster is known here, else the defaults.

    Raises BadSettings for a name that no cluster can have.
    """
    ClusterSettings(name=name).validate()
    base: dict[str, Any] = {}
    if not reset and descriptor.descriptor_path(name).exists():
        base = dict(descriptor.load(name).settings)
    return ClusterSettings.from_dict(base | {"name": name} | chosen)


def join(
    known: Descriptor, settings: ClusterSettings, ray_address: str, progress: Progress
) -> Started:
    """Makes sure that a cluster which runs has so many agents.

    Raises ClusterExists if other settings are asked for, or fewer agents; Unavailable if
    it is dead; LaunchFailed, after which it may be called again.
    """
    refuse_other(known, settings, ray_address)
    status = ask_status(known)
    attached = bool(settings.tier) and not tier_of(known)
    if attached:
        known = _add_tier(known, settings)
    elif status.tier is not None and status.tier.state == CLOSED:
        _open(known)
    missing = never_joined(status, settings.agents)
    if missing:
        return _grow(known, settings, status, missing, progress)
    known = _save(known, settings)
    return Started(
        descriptor=known, fresh=False, agents_up=_count_up(status), tier_attached=attached
    )


def _add_tier(known: Descriptor, settings: ClusterSettings) -> Descriptor:
    """Has a cluster that runs keep what it holds in a tier: its agents hear of it by their
    leader, in all their lives."""
    tier = tiers.check(settings, known.cluster)
    with connect(known.name, timeout_s=ATTACH_TIMEOUT_S) as client:
        client.tier.attach(tier.uri, epoch=tier.epoch, number=tier.number, options=tier.options)
    known = replace(known, settings=known.settings | settings.tier_fields)
    descriptor.save(known)
    return known


def _open(known: Descriptor) -> None:
    """A `down` that did not come to its end has left the cluster closed."""
    with connect(known.name, timeout_s=ATTACH_TIMEOUT_S) as client:
        client.tier.close(closed=False)


def refuse_other(known: Descriptor, settings: ClusterSettings, ray_address: str) -> None:
    """Raises ClusterExists, naming what it has and what was asked for."""
    # As this version writes them: an earlier one may have had fewer.
    has = ClusterSettings.from_dict(known.settings).to_dict()
    has |= {"ray_address": record_of(known).requested or "its own"}
    asked = settings.to_dict() | ({"ray_address": ray_address} if ray_address else {})
    free = {"agents"} | (set() if tier_of(known) else settings.tier_fields.keys())
    other = ", ".join(
        f"{key} {has.get(key)}, not {value}"
        for key, value in asked.items()
        if key not in free and value is not None and has.get(key) != value
    )
    if other:
        raise ClusterExists(
            f"cluster {known.name!r} is there already, with other settings ({other}), and only "
            "its --agents can grow, and a --tier be added: run `diskless down` first, or choose "
            "another --name"
        )
    if settings.agents < has["agents"]:
        raise ClusterExists(
            f"cluster {known.name!r} has {has['agents']} agents, and a cluster cannot shrink to "
            f"{settings.agents}: `diskless drain SLOT` empties an agent, so that it can be "
            "taken away"
        )


def never_joined(status: ClusterStatus, agents: int) -> list[int]:
    """The slots below `agents` that have had no life yet."""
    known = {parse_slot(a.slot) for a in status.agents if a.state != "starting"}
    return [slot for slot in range(agents) if slot not in known]


def ask_status(known: Descriptor, *, timeout_s: float = ASK_TIMEOUT_S) -> ClusterStatus:
    """The cluster's status. Raises Unavailable, with what to do, if it does not answer."""
    refuse_dead(known)
    try:
        with connect(known.name, timeout_s=timeout_s) as client:
            return client.status()
    except (DeadlineExceeded, Unavailable) as error:
        raise Unavailable(
            f"cluster {known.name!r} does not answer ({error}): {advice_for_dead(known)}"
        ) from error


def _grow(
    known: Descriptor,
    settings: ClusterSettings,
    status: ClusterStatus,
    missing: Sequence[int],
    progress: Progress,
) -> Started:
    refuse_without_ray(known)
    ray_link.attach(record_of(known), f"diskless-{known.name}")  # Before anything is changed.
    try:
        grown = replace(known, settings=known.settings | {"agents": settings.agents})
        advice = _start(grown, status.agents, missing, progress)
    except DisklessError as error:
        again = f"`diskless up --agents {settings.agents}{name_option(known.name)}`"
        raise LaunchFailed(f"{error}; the cluster is as before: {again} tries again") from error
    finally:
        ray_link.detach()
    known = _save(known, settings)
    status = _see_balance(known)
    hosts = [agent.host for agent in status.agents if agent.host]
    return Started(
        descriptor=known,
        fresh=False,
        agents_up=_count_up(status),
        added=list(missing),
        advice=advice + seats.advise(settings, hosts),
        balance=status.balance,
    )


def _see_balance(known: Descriptor) -> ClusterStatus:
    """The status, as soon as it says how long shards will move to new agents, or that none do."""
    until_s = time.monotonic() + BALANCE_WAIT_S
    while True:
        status = ask_status(known)
        told = status.balance.eta_s is not None or status.balance.state in ("idle", "settled")
        if told or time.monotonic() >= until_s:
            return status
        time.sleep(BALANCE_PAUSE_S)


def _start(
    known: Descriptor,
    rows: Sequence[AgentStatus],
    missing: Sequence[int],
    progress: Progress,
) -> list[str]:
    """Starts agents and waits until all have joined; what the operator should know."""
    from diskless.launch import agents, probe, spread

    record = record_of(known)
    nodes = spread.living_nodes()
    advice = [] if record.own else probe.warnings_about(probe.probe_nodes(nodes))
    descriptor.save(known)  # From here on there may be more agents.
    identity = agents.identity_of(known)
    new = agents.vacant(identity, missing)
    chosen = agents.seats_for(identity, new, rows=rows)
    agents.create(identity, chosen, founding=False)
    agents.wait_serving(identity, missing, ready=lambda state: state.joined, progress=progress)
    if record.one_host and not seats.on_one_host(nodes):
        advice.append(
            "this cluster began on one host and listens on loopback only: its new agents are "
            "on that host too"
        )
    return advice


def _save(known: Descriptor, settings: ClusterSettings) -> Descriptor:
    """Keeps the settings, and where agents are now that were not known to be anywhere."""
    with connect(known.name, timeout_s=ASK_TIMEOUT_S) as client:
        gateways = _merged(known.gateways, client.agents())
    kept = {key: value for key, value in settings.to_dict().items() if value is not None}
    new = replace(known, settings=known.settings | kept, gateways=gateways)
    if new != known:
        descriptor.save(new)
    return new


def _merged(old: Sequence[Peer], now: Sequence[Peer]) -> list[Peer]:
    peers = {peer.slot: peer for peer in old} | {peer.slot: peer for peer in now}
    return [replace(peers[slot], up=True, slow=False) for slot in sorted(peers)]


def _count_up(status: ClusterStatus) -> int:
    return sum(agent.is_there() for agent in status.agents)
