"""Whether a cluster that is known here is well: its descriptor, its agents, their clocks.

Asks the leader once, and nobody else. An unreachable cluster is a finding, not an error.
"""

import time
from collections.abc import Callable

from diskless.agent.memory import RESERVE_SHARE
from diskless.client import connect, descriptor
from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings
from diskless.doctor.findings import Finding, ok, warning, wrong
from diskless.errors import DisklessError, NoCluster
from diskless.launch.record import advice_for_dead, name_option, refuse_dead
from diskless.model import ClusterStatus

ANSWER_TIMEOUT_S = 5.0
SKEW_WARNING_MS = 2_000
"""More than answers take on a busy network. Times that people see are that much off."""
SKEW_WRONG_MS = 60_000
"""Tokens of a minute's use are refused too early or too late."""
SYNC = "set the clock there, with chrony or systemd-timesyncd"


def known(name: str) -> Descriptor | None:
    """The descriptor of that cluster, if there is a sound one. Raises BadRequest."""
    if not descriptor.descriptor_path(name).exists():
        return None
    try:
        return descriptor.load(name)
    except NoCluster:
        return None


def settings_of(found: Descriptor | None, name: str) -> ClusterSettings:
    """The cluster's, or those that `up` would begin with."""
    if found is None or not found.settings:
        return ClusterSettings(name=name)
    return ClusterSettings.from_dict(found.settings)


def examine(name: str, *, now_s: Callable[[], float] = time.time) -> list[Finding]:
    """All checks of a cluster; the later ones only if it answers. Raises BadRequest."""
    path = descriptor.descriptor_path(name)
    if not path.exists():
        return [ok("descriptor", f"no cluster {name} is known here: `diskless up` starts one")]
    try:
        found = descriptor.load(name)
        refuse_dead(found)
    except NoCluster as error:
        advice = "delete it, or copy the cluster's descriptor here again"
        return [wrong("descriptor", str(error), advice)]
    except DisklessError as error:
        what, _, advice = str(error).partition(": ")
        return [wrong("descriptor", what, advice)]
    findings = [ok("descriptor", str(path))]
    try:
        with connect(name, timeout_s=ANSWER_TIMEOUT_S) as client:
            began_s = now_s()
            status = client.status()
            took_s = now_s() - began_s
    except DisklessError as error:
        where = "`diskless logs`" if found.ray else "the agents' logs"
        advice = f"look at {where}; if the cluster is dead, {advice_for_dead(found)}"
        return [*findings, wrong("agents", f"the cluster does not answer: {error}", advice)]
    return [
        *findings,
        check_agents(status),
        check_margin(status),
        check_full(status),
        check_clocks(status, here_ms=int((began_s + took_s / 2) * 1000)),
    ]


def check_agents(status: ClusterStatus) -> Finding:
    missing = [agent.slot for agent in status.agents if not agent.is_there()]
    serving = f"{len(status.agents) - len(missing)} of {len(status.agents)} serve"
    if status.unhosted:
        slot, why = next(iter(status.unhosted.items()))
        return wrong("agents", f"{serving}; {slot}: {why}", "add a host, or bring that one back")
    if missing:
        option = name_option(status.name)
        advice = f"Ray restarts processes within seconds; else see `diskless logs{option}`"
        return warning("agents", f"{serving}, not {', '.join(missing)}", advice)
    slow = [agent.slot for agent in status.agents if agent.state == "slow"]
    if slow:
        advice = "look at the CPU and the network of that host"
        return warning("agents", f"{serving}, {', '.join(slow)} slowly", advice)
    return ok("agents", serving)


def check_margin(status: ClusterStatus) -> Finding:
    k = status.parity_shards
    found = f"{max(status.margin, 0)} of {k} losses are survived now"
    if status.margin < 0:
        advice = "see `diskless status`; bring back agents that are down before anything else"
        return wrong("margin", "some data cannot be read", advice)
    if status.margin < k:
        advice = "wait for repair; `diskless status --watch` shows how far it is"
        return warning("margin", found, advice)
    return ok("margin", found)


def check_full(status: ClusterStatus) -> Finding:
    """Whether an agent has reached what clients' data may take."""
    agents = [agent for agent in status.agents if agent.bytes_max]
    fullest = max(agents, key=lambda agent: agent.bytes_used / agent.bytes_max, default=None)
    if fullest is None:
        return ok("space", "not known yet")
    share = fullest.bytes_used / fullest.bytes_max
    found = f"{fullest.slot} is the fullest: {share:.0%} of its memory"
    if share >= 1 - RESERVE_SHARE:
        return warning("space", found, "delete files, add agents, or add a tier")
    return ok("space", found)


def check_clocks(status: ClusterStatus, *, here_ms: int) -> Finding:
    """The voters' clocks and this host's, against the voters' median."""
    skews = {v.slot: v.clock_skew_ms for v in status.voters if v.clock_skew_ms is not None}
    hosts = {agent.slot: agent.host for agent in status.agents}
    if status.time_ms:
        skews["this host"] = here_ms - status.time_ms
    if not skews:
        return ok("clocks", "not known yet")
    worst = max(skews, key=lambda who: abs(skews[who]))
    off_ms = skews[worst]
    named = f"{worst} ({hosts[worst]})" if hosts.get(worst) else worst
    if abs(off_ms) < SKEW_WARNING_MS:
        return ok("clocks", f"within {abs(off_ms) / 1000:.1f} s of each other")
    side = "ahead of" if off_ms > 0 else "behind"
    found = f"{named} is {abs(off_ms) / 1000:.1f} s {side} the median of the voters"
    judge = wrong if abs(off_ms) >= SKEW_WRONG_MS else warning
    return judge("clocks", found, SYNC)
