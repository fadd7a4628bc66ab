"""The agents of one cluster for an operator's command: created, waited for, listed, killed.

Runs in the process of `up`, `down` or `chaos`, after `ray_link.attach`. Everything here has a
deadline.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil
import ray

from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings, TierSettings
from diskless.errors import LaunchFailed
from diskless.identity.keyfile import Keys
from diskless.launch import actors, rundir, seats, spread
from diskless.launch.actor import AgentActor
from diskless.launch.model import AgentState, Identity, Process, namespace_of
from diskless.launch.probe import last_line
from diskless.launch.record import record_of
from diskless.launch.supply import Supply
from diskless.model import AgentStatus, parse_slot, slot_name

POLL_S = 0.05
STATE_TIMEOUT_S = 5.0
RESTORE_TIMEOUT_S = 1800.0
"""For the namespace of a tier: it is what was written since its last whole picture, and that."""
SERVE_TIMEOUT_S = 90.0
LEAVE_TIMEOUT_S = 5.0
END_TIMEOUT_S = 10.0
CLEAR_TIMEOUT_S = 30.0
END_ROUNDS_MAX = 3

Progress = Callable[[str, int, int], None]
"""Called with what is under way, and how many of how many are done."""


# Creating.


def identity_of(known: Descriptor) -> Identity:
    """Raises Unauthorized if that is not the operator's descriptor."""
    keys = Keys(
        cluster=known.cluster,
        name=known.name,
        root=known.keyring.hex(),
        authority=known.authority,
        authority_key=known.authority_key,
    )
    settings = ClusterSettings.from_dict(known.settings)
    tier = TierSettings(**known.tier) if known.tier else None
    return Identity(settings, keys, record_of(known).one_host, tier)


def seats_for(
    identity: Identity,
    slots: Sequence[int],
    *,
    rows: Iterable[AgentStatus] = (),
) -> dict[int, seats.RayNode]:
    """A node for each of the slots, given where the other agents are: as Ray tells, and the
    cluster's status (`rows`), which also knows those that Ray does not run just now."""
    draining = spread.draining_nodes()
    nodes = spread.living_nodes()
    living = [node for node in nodes if node.id not in draining] or nodes
    known = seats.seated(rows, nodes) | {s: p.node for s, p in processes(identity).items()}
    taken = [node for slot, node in known.items() if slot not in slots]
    hosts = {node.host for node in taken}
    near = [node for node in living if node.host in hosts] if identity.one_host else living
    return seats.assign(slots, near or living, taken=taken)


def create(
    identity: Identity,
    chosen: Mapping[int, seats.RayNode],
    *,
    founding: bool,
    seeds: Mapping[int, str] | None = None,
) -> None:
    """Starts the actors of slots that have none: see `actors.create`. Raises LaunchFailed."""
    actors.create(AgentActor, identity, chosen, founding=founding, seeds=seeds)


def form(identity: Identity, founders: Mapping[int, AgentState], progress: Progress) -> None:
    """Begins the namespace on all agents, each in the life that its state describes; with what
    the tier holds, if they are to restore that."""
    restores = identity.tier is not None and identity.tier.restores
    addresses = {slot: state.address for slot, state in founders.items()}
    calls = [
        ray.get_actor(slot_name(slot), namespace=identity.namespace).form.remote(
            state.boot, addresses
        )
        for slot, state in founders.items()
    ]
    try:
        if restores:
            _watch_restore(identity, calls, progress)
        ray.get(calls, timeout=RESTORE_TIMEOUT_S if restores else STATE_TIMEOUT_S)
    except ray.exceptions.RayTaskError as error:
        raise LaunchFailed(last_line(error)) from error
    except ray.exceptions.RayError as error:
        raise LaunchFailed(f"the cluster was not formed: {last_line(error)}") from error


def _watch_restore(identity: Identity, calls: list[Any], progress: Progress) -> None:
    """Tells how far the slowest voter is, until the calls have ended or it is too late."""
    voters = range(identity.settings.voters)
    end_s = time.monotonic() + RESTORE_TIMEOUT_S
    while ray.wait(calls, num_returns=len(calls), timeout=POLL_S)[1]:
        seen = actors.ask(identity, voters).values()
        slowest = min((state.restored for state in seen), default=0.0)
        progress("namespace", round(100 * slowest), 100)
        if time.monotonic() > end_s:
            return


def wait_serving(
    identity: Identity,
    slots: Iterable[int],
    *,
    ready: Callable[[AgentState], bool],
    progress: Progress,
) -> dict[int, AgentState]:
    """The states of agents, once all are `ready`; those without keys get a ticket. Raises
    LaunchFailed at the deadline."""
    wanted = sorted(slots)
    states: dict[int, AgentState] = {}
    end_s = time.monotonic() + SERVE_TIMEOUT_S
    with Supply(identity) as supply:
        while True:
            missing = [slot for slot in wanted if slot not in states]
            seen = actors.ask(identity, missing)
            states |= {slot: state for slot, state in seen.items() if ready(state)}
            progress("agents", len(states), len(wanted))
            if len(states) == len(wanted):
                return states
            supply.tend(seen.values())
            _refuse_broken(seen.values())
            if time.monotonic() > end_s:
                late = ", ".join(slot_name(slot) for slot in wanted if slot not in states)
                raise LaunchFailed(f"{late} did not serve within {SERVE_TIMEOUT_S:g} s")
            time.sleep(POLL_S)


def _refuse_broken(states: Iterable[AgentState]) -> None:
    for state in states:
        if state.error and not state.wants_keys:
            raise LaunchFailed(f"{slot_name(state.slot)} does not start: {state.error}")


# Finding.


def vacant(identity: Identity, slots: Iterable[int]) -> list[int]:
    """Those that have no actor. One whose raylet has ended is given up for that: Ray would
    keep it forever. One whose host is silent may only be cut off, and is left alone."""
    slots = list(slots)
    name = identity.settings.name
    replies = spread.knock(spread.registered_nodes())
    rows = {slot: actors.row_of(name, slot) for slot in slots}
    ended = [
        slot
        for slot in slots
        if replies.get(actors.home_of(rows[slot])) is spread.RayletReply.ENDED
    ]
    for slot in set(ended) - actors.ask_quietly(identity, ended).keys():
        actors.give_up(name, slot, rows[slot]["ActorID"])
    return [slot for slot in slots if actors.find(name, slot) is None]


def reachable(identity: Identity, slots: Iterable[int]) -> list[int]:
    """Those that have an actor, on a node that answers or on none yet: worth waiting for."""
    living = {"", *(node.id for node in spread.living_nodes())}
    rows = {slot: actors.row_of(identity.settings.name, slot) for slot in slots}
    return [slot for slot, row in rows.items() if row and actors.home_of(row) in living]


def is_taken(name: str) -> bool:
    """Whether this Ray runs agents of a cluster of that name."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return any(actor["namespace"] == namespace_of(name) for actor in named)


def slots_of(identity: Identity) -> list[int]:
    """Those that the settings name, and those that Ray knows: a descriptor which was copied
    to another host does not hear of slots that are added."""
    named = ray.util.list_named_actors(all_namespaces=True)
    mine = [a["name"] for a in named if a["namespace"] == identity.namespace]
    return sorted({*range(identity.settings.agents), *map(parse_slot, mine)})


def processes(identity: Identity) -> dict[int, Process]:
    """Where the living agents run, by slot; one that is being restarted is not among them."""
    nodes = {node.id: node for node in spread.living_nodes()}
    found = {}
    for slot in slots_of(identity):
        row = actors.row_of(identity.settings.name, slot)
        node = nodes.get(actors.home_of(row))
        if row.get("State") == "ALIVE" and node is not None:
            found[slot] = Process(slot, int(row["Pid"]), node)
    return found


# Ending.


def kill(identity: Identity, victims: Iterable[Process], *, stay_dead: bool) -> None:
    """SIGKILLs the agents' processes, all at once. Raises LaunchFailed if one survives."""
    victims = list(victims)
    handles = [actors.find(identity.settings.name, victim.slot) for victim in victims]
    for victim in victims:
        if victim.node.here:
            _send_kill(victim.pid)
    away = [_end_elsewhere(victim) for victim in victims if not victim.node.here]
    if stay_dead:
        for handle in handles:
            if handle is not None:
                ray.kill(handle, no_restart=True)
    if len(ray.wait(away, num_returns=len(away), timeout=END_TIMEOUT_S)[0]) < len(away):
        raise LaunchFailed(
            f"agents on other hosts did not end within {END_TIMEOUT_S:g} s: run it again"
        )
    ray.get(away)
    for victim in victims:
        if victim.node.here:
            wait_ended(victim.pid)
        if stay_dead:
            actors.wait_nameless(identity.settings.name, victim.slot)


def end_all(identity: Identity) -> None:
    """Ends every agent, so that each leaves nothing on its host.

    A leader may start one meanwhile, elsewhere: so this looks again when all are dead.
    """
    for _ in range(END_ROUNDS_MAX):
        if not _end_found(identity):
            break
    _clear_hosts(identity)


def _end_found(identity: Identity) -> bool:
    """Whether there were any."""
    slots = slots_of(identity)
    states = actors.ask_quietly(identity, slots)
    strangers = {s for s, state in states.items() if state.cluster_id != identity.cluster_id}
    handles = {
        slot: handle
        for slot in slots
        if slot not in strangers
        and (handle := actors.find(identity.settings.name, slot)) is not None
    }
    running = [process for slot, process in processes(identity).items() if slot in handles]
    leaving = [handle.leave.remote() for handle in handles.values()]
    if leaving:
        ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_TIMEOUT_S)
    for handle in handles.values():
        ray.kill(handle, no_restart=True)
    kill(identity, running, stay_dead=False)
    for slot in handles:
        actors.wait_nameless(identity.settings.name, slot)
    return bool(handles)


def _clear_hosts(identity: Identity) -> None:
    task = ray.remote(rundir.clear_run_dir)
    clearing = [
        task.options(num_cpus=0, scheduling_strategy=spread.affinity(node.id)).remote(
            identity.cluster_id
        )
        for node in spread.living_nodes()
    ]
    ray.wait(clearing, num_returns=len(clearing), timeout=CLEAR_TIMEOUT_S)


def _end_elsewhere(victim: Process) -> Any:
    task = ray.remote(end_process)
    return task.options(
        num_cpus=0, scheduling_strategy=spread.affinity(victim.node.id)
    ).remote(victim.pid)  # fmt: skip


def end_process(pid: int) -> None:
    """Runs on the process's host."""
    _send_kill(pid)
    wait_ended(pid)


def _send_kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_ended(pid: int) -> None:
    end_s = time.monotonic() + END_TIMEOUT_S
    while _runs(pid):
        if time.monotonic() > end_s:
            raise LaunchFailed(f"process {pid} did not end within {END_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
