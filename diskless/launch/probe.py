"""What a Ray that we did not start is like for agents: may they run there, and how well.

Runs a task on every node before anything is started, and says what to change about Ray.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import ray

import diskless
from diskless.errors import LaunchFailed
from diskless.launch import ray_internals, spread
from diskless.launch.private_ray import (
    GCS_PATIENCE,
    GCS_PATIENCE_S,
    NODE_PATIENCE,
    NODE_PATIENCE_CHECKS,
)
from diskless.launch.seats import RayNode, on_one_host

PROBE_TIMEOUT_S = 60.0
NICENESS_MAX = 0
OOM_SCORE_MAX = 0
MEMORY_MONITOR = "RAY_memory_monitor_refresh_ms"
PATIENCE_MIN = 10_000
"""Seconds, or checks of some seconds each: longer than a host is cut off unnoticed."""


class Probe(NamedTuple):
    """What a worker on a Ray node is like, before an agent is put there."""

    version: str
    niceness: int
    oom_score_adjust: int
    memory_monitor_ms: str
    gcs_patience_s: str
    node_patience_checks: str


def probe_nodes(nodes: Iterable[RayNode]) -> dict[RayNode, Probe]:
    """Tries this package on every node. Raises LaunchFailed where it cannot run."""
    task = ray.remote(probe_worker)
    asked = {
        node: task.options(num_cpus=0, scheduling_strategy=spread.affinity(node.id)).remote()
        for node in nodes
    }
    return {node: _probed(node, answer) for node, answer in asked.items()}


def _probed(node: RayNode, answer: Any) -> Probe:
    try:
        probe: Probe = ray.get(answer, timeout=PROBE_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError as error:
        ray.cancel(answer)
        raise LaunchFailed(
            f"Ray node {node.host} ran nothing within {PROBE_TIMEOUT_S:g} s: look at its "
            "raylet's log, or end it (`ray stop` there) and try again"
        ) from error
    except (ray.exceptions.RayError, ImportError, AttributeError) as error:
        raise LaunchFailed(
            f"diskless does not run on Ray node {node.host}: {last_line(error)}; "
            "install it there, in the Python that Ray uses"
        ) from error
    if probe.version != diskless.__version__:
        raise LaunchFailed(
            f"Ray node {node.host} has diskless {probe.version}, this is {diskless.__version__}: "
            "install the same version everywhere"
        )
    return probe


def probe_worker() -> Probe:
    """Runs on a Ray node."""
    with open("/proc/self/oom_score_adj") as file:
        oom_score_adjust = int(file.read())
    return Probe(
        version=diskless.__version__,
        niceness=os.nice(0),
        oom_score_adjust=oom_score_adjust,
        memory_monitor_ms=os.environ.get(MEMORY_MONITOR, ""),
        gcs_patience_s=os.environ.get(GCS_PATIENCE, ""),
        node_patience_checks=os.environ.get(NODE_PATIENCE, ""),
    )


def warnings_about(probed: Mapping[RayNode, Probe]) -> list[str]:
    """What a Ray that we did not start does to agents, and how to end it."""
    probes = list(probed.values())
    warnings = [] if on_one_host(probed) else _about_patience(probes)
    configured = ray_internals.system_config().get(MEMORY_MONITOR.removeprefix("RAY_"))
    if any((probe.memory_monitor_ms or str(configured)) != "0" for probe in probes):
        warnings.append(
            f"Ray's memory monitor is on and may kill agents: start Ray with {MEMORY_MONITOR}=0"
        )
    if any(probe.niceness > NICENESS_MAX for probe in probes):
        warnings.append(
            f"Ray runs agents at niceness {max(probe.niceness for probe in probes)}: start Ray "
            "with RAY_worker_niceness=0"
        )
    if any(probe.oom_score_adjust > OOM_SCORE_MAX for probe in probes):
        warnings.append(
            "the kernel would kill agents first when memory runs out: start Ray with "
            "RAY_worker_oom_score_adjustment=0"
        )
    return warnings


def _about_patience(probes: Iterable[Probe]) -> list[str]:
    """What ends all agents together, after a minute without the head of Ray."""
    patient = (_is_long(p.gcs_patience_s) and _is_long(p.node_patience_checks) for p in probes)
    if all(patient):
        return []
    return [
        "Ray ends all agents together when its head is gone, or cut off, for a minute: start Ray "
        f"on every host with {GCS_PATIENCE}={GCS_PATIENCE_S} and "
        f"{NODE_PATIENCE}={NODE_PATIENCE_CHECKS}"
    ]


def _is_long(text: str) -> bool:
    return text.isdecimal() and int(text) >= PATIENCE_MIN


def last_line(error: BaseException) -> str:
    """Ray's errors carry whole tracebacks; what went wrong is at the end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
