"""What voters do while nothing is asked of them."""

import pytest

from diskless.namespace import replication as vr
from tests.conftest import StartCluster
from tests.support import CALM, eventually


def test_idle_voters_look_at_the_time_once_for_each_heartbeat(
    start: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"tick": 0, "_on_heartbeat": 0}
    idle: list[vr.VoterMachine | None] = []

    def counted(name: str) -> None:
        method = getattr(vr.VoterMachine, name)

        def count(self: vr.VoterMachine, *given: object, **named: object) -> object:
            counts[name] += self in idle
            return method(self, *given, **named)

        monkeypatch.setattr(vr.VoterMachine, name, count)

    for name in counts:
        counted(name)
    cluster = start(tuning=CALM)
    idle.append(cluster.nodes[1].replica._voter)  # clusters of other tests may have some too

    def once_each() -> bool:
        counts.update(dict.fromkeys(counts, 0))
        eventually(lambda: counts["_on_heartbeat"] >= 10)
        return counts["tick"] < 1.6 * counts["_on_heartbeat"]

    eventually(once_each)  # on a busy machine heartbeats are late at times
