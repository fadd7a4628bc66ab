"""Runs: the workload finds broken stores, whole runs pass on a sound one, and all is undone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diskless.chaos import report
from diskless.chaos.faults import Chaos
from diskless.chaos.kv import KeyValue, read_value, sizes_up_to, value_bytes
from diskless.chaos.run import Options, Outcome, await_margin, run
from diskless.chaos.timeline import Timeline
from diskless.chaos.verdict import judge
from diskless.chaos.workload import News
from diskless.cli import exits
from diskless.client import descriptor
from diskless.config import KIB, MIB
from diskless.errors import BadRequest, PromiseBroken, Unavailable
from diskless.launch.local import LocalCluster
from diskless.model import AgentStatus, ClusterStatus
from tests.chaos.fake_store import (
    Dying,
    FakeStore,
    Forgetful,
    Garbling,
    HalfRenaming,
    Hollow,
    SlowToSeal,
    Twice,
    Unclear,
    Waiting,
)
from tests.chaos.signals import LocalSignals
from tests.conftest import Connect, StartCluster
from tests.support import BRISK, eventually

pytestmark = pytest.mark.usefixtures("slow_agents")

K = 2
SIZES = sizes_up_to(MIB)


# The workload and its oracle.


def drive(store: FakeStore, steps: int) -> KeyValue:
    work = KeyValue(lambda: store, seed=3, root="/r", sizes=sizes_up_to(KIB))  # type: ignore[arg-type,return-value]
    work.start()
    eventually(lambda: store.steps >= steps)
    work.stop()
    return work


@pytest.mark.parametrize("store", [FakeStore, Unclear])
def test_a_sound_store_is_found_sound(store: type[FakeStore]):
    findings = drive(store(), 200).finish()
    assert (findings.wrong, findings.undecided, findings.unreadable) == ([], [], [])
    assert findings.acknowledged > 30
    assert bool(findings.unknown) == (store is Unclear)


@pytest.mark.parametrize("mutant", [Forgetful, Twice, Garbling, HalfRenaming, Hollow])
def test_a_store_that_breaks_a_promise_is_caught(mutant: type[FakeStore]):
    findings = drive(mutant(), 400).finish()
    assert findings.wrong, f"{mutant.__name__}: {findings}"


def test_a_store_that_died_is_not_asked_for_each_of_its_keys():
    store = Dying()
    work = drive(store, 100)
    store.dead = True
    findings = work.finish()
    assert store.asked_in_vain <= 3
    assert len(findings.unreadable) >= 24, "every key counts, asked for or not"
    assert not findings.wrong


def test_bytes_that_were_waited_for_in_vain_count_as_lost():
    findings = drive(Waiting(), 200).finish()
    assert findings.refusals.keys() == {"ShardsAway"}
    assert judge(findings, healed=True, max_down=K, k=K).exit_status == PromiseBroken.exit_code


def test_bytes_that_a_write_waited_for_in_vain_were_never_promised():
    findings = drive(SlowToSeal(), 200).finish()
    assert findings.refusals.keys() == {"DeadlineExceeded"}
    assert judge(findings, healed=True, max_down=K, k=K).passed


@pytest.mark.parametrize("size", [0, 1, 100, 70 * KIB])
def test_a_value_is_known_by_its_bytes_and_no_other_bytes_are_one(size: int):
    data = value_bytes(77, size)
    assert read_value(data) == 77
    assert read_value(data + b"x") is None
    assert read_value(data[:-1]) is None
    for at in {0, 8, len(data) // 2, len(data) - 1}:
        assert read_value(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) != 77


# Whole runs.


def options(**more: Any) -> Options:
    fields: dict[str, Any] = {
        "seed": 1,
        "duration_s": 7.0,
        "kinds": ("kill", "partition", "corrupt", "slow"),
        "max_down": K,
        "heal_timeout_s": 30.0,
        "workload": "kv",
        "replay": "again",
    }
    return Options(**(fields | more))


Run = Callable[..., Outcome]


@pytest.fixture
def run_kv(connect: Connect) -> Run:
    def begin(cluster: LocalCluster, sizes: Any = SIZES, **more: Any) -> Outcome:
        signals = LocalSignals(cluster)
        chaos = Chaos(
            descriptor.load(cluster.settings.name), connect(cluster, timeout_s=3), signals
        )
        work = KeyValue(lambda: cluster.connect(timeout_s=15), seed=1, root="/kv", sizes=sizes)
        try:
            return run(chaos, connect(cluster, timeout_s=3), work, options(**more), say=print)
        finally:
            signals.wait()

    return begin


class Mood:
    """A client whose cluster is whole, or not, as a script says; the last word stays."""

    def __init__(self, *whole: bool | None) -> None:
        self._words = list(whole)
        self.asked = 0

    def status(self) -> ClusterStatus:
        self.asked += 1
        whole = self._words.pop(0) if len(self._words) > 1 else self._words[0]
        if whole is None:
            raise Unavailable("nobody leads")
        agent = AgentStatus(slot="agent-0", state="up" if whole else "down")
        return ClusterStatus(
            parity_shards=K, margin=K if whole else 1, margin_hosts=0, agents=[agent]
        )


@pytest.mark.parametrize(
    ("whole", "healed", "asked"),
    [
        ((True,), True, 3),
        ((True, False, True), True, 5),  # one that was frozen is found missing only now
        ((True, None, False, True), True, 6),
        ((False,), False, 3),
        ((True, False), False, 3),
        ((None,), False, 3),
    ],
)
def test_a_cluster_is_healed_once_it_stays_so(
    whole: tuple[bool | None, ...], healed: bool, asked: int
):
    client: Any = Mood(*whole)
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    timeline = Timeline(client, lambda: News(0, []), lambda: now_s[0])
    wish = options(heal_timeout_s=0.45)
    took_s = await_margin(client, timeline, K, wish, print, steady_s=0.25, sleep=sleep)
    assert (took_s is not None) == healed
    assert client.asked >= asked
    assert timeline.events[-1].kind == ("healed" if healed else "not healed")


def test_within_k_a_run_passes_heals_and_leaves_nothing(
    start: StartCluster, connect: Connect, run_kv: Run, tmp_path: Path
):
    cluster = start(tuning=BRISK)
    outcome = run_kv(cluster, seed=31)  # kills, cuts off and slows down
    assert outcome.verdict.passed, report.as_text(outcome)
    assert outcome.planted >= 2
    assert outcome.findings.acknowledged > 100
    assert {sample.margin for sample in outcome.samples} <= {None, 0, 1, 2}
    assert not any(node.faults.disturbs for node in cluster.nodes.values())
    assert not connect(cluster).exists("/kv")

    written, missing = report.write(outcome, tmp_path / "out")
    assert [path.name for path in written[:2]] == ["report.txt", "report.json"]
    assert len(written) == 3 or missing == [report.NO_PICTURE]
    assert msgspec.json.decode(written[1].read_bytes())["verdict"]["passed"] is True
    assert written[0].read_text().endswith("again: again\n")


def test_beyond_k_a_run_fails_loudly_and_nothing_is_wrong(start: StartCluster, run_kv: Run):
    cluster = start()
    outcome = run_kv(
        cluster,
        sizes=[(1, (100 * KIB, 2 * MIB))],
        kinds=("kill",),
        max_down=K + 1,
        duration_s=8.0,
        heal_timeout_s=1.0,
    )
    assert outcome.findings.wrong == []
    assert outcome.findings.refusals.get("TooFewShards"), report.as_text(outcome)
    assert outcome.findings.unreadable, "what was kept and never written again is gone"
    assert outcome.verdict.exit_status == exits.BEYOND_PROMISE, outcome.verdict


class Gravedigger(LocalSignals):
    """Whom it kills nobody brings back."""

    def kill(self, slots: Sequence[int], *, stay_dead: bool) -> dict[int, int]:
        return super().kill(slots, stay_dead=True)


@pytest.mark.slow  # it waits for answers that do not come
@pytest.mark.parametrize(
    "down",
    [pytest.param(4, id="no majority"), pytest.param(6, id="nobody")],
)
def test_a_cluster_that_dies_for_good_still_gets_its_verdict(
    start: StartCluster, connect: Connect, down: int
):
    cluster = start()
    chaos = Chaos(
        descriptor.load(cluster.settings.name),
        connect(cluster, timeout_s=1),
        Gravedigger(cluster),
    )
    work = KeyValue(lambda: cluster.connect(timeout_s=2), seed=1, root="/kv", sizes=SIZES)
    wish = options(kinds=("kill",), max_down=down, duration_s=4.0, heal_timeout_s=0.5)
    outcome = run(chaos, connect(cluster, timeout_s=1), work, wish, say=print)
    assert outcome.findings.wrong == []
    assert outcome.findings.unreadable
    assert not outcome.healed
    assert outcome.verdict.exit_status == exits.BEYOND_PROMISE, report.as_text(outcome)


def test_an_interrupted_run_takes_everything_back(start: StartCluster, connect: Connect):
    cluster = start(tuning=BRISK)
    chaos = Chaos(descriptor.load(cluster.settings.name), connect(cluster), LocalSignals(cluster))
    work = KeyValue(cluster.connect, seed=1, root="/kv", sizes=SIZES)

    def interrupt(line: str) -> None:
        if "cut" in line:
            raise KeyboardInterrupt

    wish = options(kinds=("partition",), duration_s=60.0)
    with pytest.raises(KeyboardInterrupt):
        run(chaos, connect(cluster), work, wish, say=interrupt)
    assert chaos.active == []
    assert not any(node.faults.disturbs for node in cluster.nodes.values())


def test_a_run_does_not_begin_on_top_of_other_faults(
    start: StartCluster, connect: Connect, run_kv: Run
):
    from diskless.chaos.schedule import Step

    cluster = start(tuning=BRISK)
    chaos = Chaos(descriptor.load(cluster.settings.name), connect(cluster), LocalSignals(cluster))
    chaos.plant(Step(at_s=0, kind="slow", victims=(1,), delay_ms=5), max_down=K)
    with pytest.raises(BadRequest, match="chaos heal"):
        run_kv(cluster)
    chaos.heal()
    eventually(lambda: chaos.down().spent == 0)
