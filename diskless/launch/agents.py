"""The agents of one cluster as Ray knows them: created, asked, killed, found again.

Runs in the process of `up`, `down` or `chaos`, after `ray_link.attach`. Ray knows an
agent by its slot's name in the cluster's Ray namespace. Everything here has a deadline.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psutil
import ray
from ray._private import state as ray_state

from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings, TierSettings
from diskless.errors import LaunchFailed, Unavailable
from diskless.identity.keyfile import Keys
from diskless.launch import rundir, seats, spread
from diskless.launch.actor import AgentActor, AgentArgs, AgentState
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
MAX_CONCURRENCY = 4

Progress = Callable[[str, int, int], None]
"""Called with what is under way, and how many of how many are done."""


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
    node: seats.RayNode


def namespace_of(name: str) -> str:
    return f"diskless-{name}"


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
    living = spread.living_nodes()
    known = seats.seated(rows, living) | {s: p.node for s, p in processes(identity).items()}
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
    """Starts the actors of slots that have none, each on its node; they join by themselves
    as soon as they have the keys: from a file on their host, or see `supply`.

    One that somebody else has started meanwhile, another `up` or a leader, is as good; except
    for founders, of which there is one set: then it raises LaunchFailed.
    """
    for slot, node in chosen.items():
        args = AgentArgs(
            settings=identity.settings,
            cluster_id=identity.cluster_id,
            slot=slot,
            namespace=identity.namespace,
            one_host=identity.one_host,
            founding=founding,
            tier=identity.tier,
            seeds=dict(seeds or {}),
        )
        actor = ray.remote(AgentActor).options(
            name=slot_name(slot),
            namespace=identity.namespace,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            max_concurrency=MAX_CONCURRENCY,
            scheduling_strategy=spread.affinity(node.id),
        )
        try:
            actor.remote(args)
        except ValueError as error:  # the name is taken
            if not founding and find(identity.settings.name, slot) is not None:
                continue
            raise LaunchFailed(
                f"{slot_name(slot)} is being started by somebody else: {last_line(error)}"
            ) from error


def form(identity: Identity, founders: Mapping[int, AgentState]) -> None:
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
        ray.get(calls, timeout=RESTORE_TIMEOUT_S if restores else STATE_TIMEOUT_S)
    except ray.exceptions.RayTaskError as error:
        raise LaunchFailed(last_line(error)) from error
    except ray.exceptions.RayError as error:
        raise LaunchFailed(f"the cluster was not formed: {last_line(error)}") from error


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
            seen = _ask(identity, missing)
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


def _ask(
    identity: Identity, slots: Iterable[int], timeout_s: float = STATE_TIMEOUT_S
) -> dict[int, AgentState]:
    """The states of those that answer."""
    asked = {}
    for slot in slots:
        handle = find(identity.settings.name, slot)
        if handle is not None:
            asked[handle.state.remote()] = slot
    if not asked:
        return {}
    # All at once: however many are silent, it takes no longer than one of them.
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
    answers = {}
    for reference in done:
        slot = asked[reference]
        try:
            answers[slot] = ray.get(reference, timeout=STATE_TIMEOUT_S)
        except ray.exceptions.ActorDiedError as error:
            if not is_restarting(identity.settings.name, slot):
                raise LaunchFailed(
                    f"{slot_name(slot)} died while it started: {last_line(error)}"
                ) from error
        except (ray.exceptions.RayError, TimeoutError):
            continue
    return answers


# Finding.


def find(name: str, slot: int) -> Any | None:
    """The handle of a slot's actor, also of one that Ray is restarting; None if dead."""
    try:
        return ray.get_actor(slot_name(slot), namespace=namespace_of(name))
    except ValueError:
        return None


def vacant(identity: Identity, slots: Iterable[int]) -> list[int]:
    """Those that have no actor. One whose raylet has ended is given up for that: Ray would
    keep it for ever. One whose host is silent may only be cut off, and is left alone."""
    slots = list(slots)
    name = identity.settings.name
    doors = spread.knock(spread.registered_nodes())
    rows = {slot: row_of(name, slot) for slot in slots}
    ended = [slot for slot in slots if doors.get(home_of(rows[slot])) is spread.Door.CLOSED]
    for slot in set(ended) - ask_quietly(identity, ended).keys():
        give_up(name, slot, rows[slot]["ActorID"])
    return [slot for slot in slots if find(name, slot) is None]


def reachable(identity: Identity, slots: Iterable[int]) -> list[int]:
    """Those that have an actor, on a node that answers or on none yet: worth waiting for."""
    living = {"", *(node.id for node in spread.living_nodes())}
    rows = {slot: row_of(identity.settings.name, slot) for slot in slots}
    return [slot for slot, row in rows.items() if row and home_of(row) in living]


def is_taken(name: str) -> bool:
    """Whether this Ray runs agents of a cluster of that name."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return any(actor["namespace"] == namespace_of(name) for actor in named)


def is_restarting(name: str, slot: int) -> bool:
    handle = find(name, slot)
    return handle is not None and _row(handle).get("State") != "DEAD"


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
        row = row_of(identity.settings.name, slot)
        node = nodes.get(home_of(row))
        if row.get("State") == "ALIVE" and node is not None:
            found[slot] = Process(slot, int(row["Pid"]), node)
    return found


def row_of(name: str, slot: int) -> dict[str, Any]:
    """What Ray knows of a slot's actor; nothing if there is none or it is dead for good."""
    handle = find(name, slot)
    return _row(handle) if handle is not None else {}


def home_of(row: Mapping[str, Any]) -> str:
    """The id of the node that Ray has an actor on, or "" if it is on none."""
    id_ = str(row.get("Address", {}).get("NodeID", ""))
    return "" if id_ == ray.NodeID.nil().hex() else id_


def _row(handle: Any) -> dict[str, Any]:
    return ray_state.actors(handle._actor_id.hex()) or {}


# Ending.


def kill(identity: Identity, victims: Iterable[Process], *, stay_dead: bool) -> None:
    """SIGKILLs the agents' processes, all at once. Raises LaunchFailed if one survives."""
    victims = list(victims)
    handles = [find(identity.settings.name, victim.slot) for victim in victims]
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
            wait_nameless(identity.settings.name, victim.slot)


def give_up(name: str, slot: int, actor: str) -> None:
    """Ray ends that actor of a slot, wherever it got to, as soon as it can; its name is free."""
    handle = find(name, slot)
    if handle is not None and handle._actor_id.hex() == actor:
        ray.kill(handle, no_restart=True)
        wait_nameless(name, slot)


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
    states = ask_quietly(identity, slots)
    strangers = {s for s, state in states.items() if state.cluster_id != identity.cluster_id}
    handles = {
        slot: handle
        for slot in slots
        if slot not in strangers and (handle := find(identity.settings.name, slot)) is not None
    }
    running = [process for slot, process in processes(identity).items() if slot in handles]
    leaving = [handle.leave.remote() for handle in handles.values()]
    if leaving:
        ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_TIMEOUT_S)
    for handle in handles.values():
        ray.kill(handle, no_restart=True)
    kill(identity, running, stay_dead=False)
    for slot in handles:
        wait_nameless(identity.settings.name, slot)
    return bool(handles)


def ask_quietly(
    identity: Identity, slots: Iterable[int], *, timeout_s: float = STATE_TIMEOUT_S
) -> dict[int, AgentState]:
    """The states of those that answer; none if one has died for good meanwhile."""
    try:
        return _ask(identity, slots, timeout_s)
    except LaunchFailed:
        return {}


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


def wait_nameless(name: str, slot: int) -> None:
    end_s = time.monotonic() + END_TIMEOUT_S
    while find(name, slot) is not None:
        if time.monotonic() > end_s:
            raise Unavailable(f"Ray did not give up {slot_name(slot)} within {END_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
