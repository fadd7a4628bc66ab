"""The actors of agents, as Ray knows them: started, found, asked, given up.

Ray knows an agent by its slot's name in the cluster's Ray namespace. The class of an agent's
actor is passed in: an agent that leads starts others, so that class cannot be imported here.
Everything here has a deadline.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray

from diskless.errors import LaunchFailed, Unavailable
from diskless.launch import ray_internals, spread
from diskless.launch.model import AgentArgs, AgentState, Identity, namespace_of
from diskless.launch.probe import last_line
from diskless.launch.seats import RayNode
from diskless.model import slot_name

POLL_S = 0.05
STATE_TIMEOUT_S = 5.0
END_TIMEOUT_S = 10.0
MAX_CONCURRENCY = 4


def create(
    actor_class: type,
    identity: Identity,
    chosen: Mapping[int, RayNode],
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
        actor = ray.remote(actor_class).options(
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


def find(name: str, slot: int) -> Any | None:
    """The handle of a slot's actor, also of one that Ray is restarting; None if dead."""
    try:
        return ray.get_actor(slot_name(slot), namespace=namespace_of(name))
    except ValueError:
        return None


def is_restarting(name: str, slot: int) -> bool:
    handle = find(name, slot)
    return handle is not None and ray_internals.actor_row(handle).get("State") != "DEAD"


def row_of(name: str, slot: int) -> dict[str, Any]:
    """What Ray knows of a slot's actor; nothing if there is none or it is dead for good."""
    handle = find(name, slot)
    return ray_internals.actor_row(handle) if handle is not None else {}


def home_of(row: Mapping[str, Any]) -> str:
    """The id of the node that Ray has an actor on, or "" if it is on none."""
    id_ = str(row.get("Address", {}).get("NodeID", ""))
    return "" if id_ == ray.NodeID.nil().hex() else id_


def ask(
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


def ask_quietly(
    identity: Identity, slots: Iterable[int], *, timeout_s: float = STATE_TIMEOUT_S
) -> dict[int, AgentState]:
    """The states of those that answer; none if one has died for good meanwhile."""
    try:
        return ask(identity, slots, timeout_s)
    except LaunchFailed:
        return {}


def give_up(name: str, slot: int, actor: str) -> None:
    """Ray ends that actor of a slot, wherever it got to, as soon as it can; its name is free."""
    handle = find(name, slot)
    if handle is not None and ray_internals.actor_id(handle) == actor:
        ray.kill(handle, no_restart=True)
        wait_nameless(name, slot)


def wait_nameless(name: str, slot: int) -> None:
    end_s = time.monotonic() + END_TIMEOUT_S
    while find(name, slot) is not None:
        if time.monotonic() > end_s:
            raise Unavailable(f"Ray did not give up {slot_name(slot)} within {END_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
