"""When agents may be ended: one by one, or all that a Ray node has."""

import pytest

from diskless.model import AgentStatus, ClusterStatus
from diskless.operate.rolling import may_end

HERE = "here/10.0.0.1"


def status(*hosts: str, margin: int = 1, k: int = 1, margin_hosts: int = 0) -> ClusterStatus:
    """Agents on hosts, whose pids are their numbers; "" has not joined yet."""
    agents = [
        AgentStatus(slot=f"agent-{n}", state="up" if host else "starting", host=host, pid=n)
        for n, host in enumerate(hosts)
    ]
    return ClusterStatus(agents=agents, margin=margin, parity_shards=k, margin_hosts=margin_hosts)


@pytest.mark.parametrize(
    ("seen", "pids", "may"),
    [
        (status(HERE, "there/1", "there/2"), {0}, True),
        (status(HERE, "there/1", "there/2", margin=0), {0}, False),
        (status(HERE, HERE, "there/2"), {0, 1}, False),  # two, and one may go
        (status(HERE, HERE, "there/2", margin_hosts=1), {0, 1}, True),  # a whole host may
        (status(HERE, HERE, "there/2", margin=2, k=2), {0, 1}, True),
        (status(HERE, HERE, "there/2", margin=1, k=2, margin_hosts=1), {0, 1}, False),
        (status(HERE, HERE, "there/2"), {0}, True),  # the other one belongs to another Ray
        (status(HERE, "there/1", "there/2"), {0, 1, 2}, True),  # pids of other hosts mean nothing
        (status("", HERE, "there/2"), {1}, True),
    ],
)
def test_so_many_agents_of_a_host_end_at_once_as_may_be_lost(
    seen: ClusterStatus, pids: set[int], may: bool
) -> None:
    assert may_end(seen, pids, "here") == may
