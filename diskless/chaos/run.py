"""A chaos run: traffic and a seeded schedule of faults, then healing, then the verdict.

Whatever happens (an error, Ctrl-C, SIGTERM), everything that was planted is taken back
before it ends. A step that the cluster cannot afford waits until it can; when time is over
the rest is left out, and the report says so.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from diskless.chaos.budget import Active
from diskless.chaos.faults import Chaos
from diskless.chaos.schedule import Step, plan
from diskless.chaos.slowdown import Slowdown, measure
from diskless.chaos.timeline import Event, Sample, Timeline
from diskless.chaos.verdict import Findings, Verdict, judge
from diskless.chaos.workload import Workload
from diskless.client import Client
from diskless.errors import BadRequest, DisklessError, NotHealed, OverBudget
from diskless.model import ClusterStatus, slot_name

POLL_S = 0.1
STEADY_TIMEOUTS = 2.0
"""For how long, in failure timeouts, a cluster must be whole to count as healed."""
EVEN = "kv"
"""The workload whose throughput has a bound: others come in batches."""
HOPELESS_S = 5.0
"""How long lost stripes may be seen, with all agents up, before waiting for them ends."""


class Options(Struct, frozen=True, kw_only=True):
    seed: int
    duration_s: float
    kinds: Sequence[str]
    max_down: int
    heal_timeout_s: float
    workload: str
    replay: str
    """The line that does it again."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Everything a report tells."""

    options: Options
    cluster: str
    k: int
    agents: int
    plan: Sequence[Step]
    planted: int
    flipped: int
    """Shards in which chaos flipped a byte, and how many it had to flip back itself."""
    mended: int
    events: Sequence[Event]
    samples: Sequence[Sample]
    unit: str
    slowdowns: Sequence[Slowdown]
    """What each slow fault cost."""
    healed: bool
    healed_after_s: float | None
    findings: Findings
    verdict: Verdict


def run(
    chaos: Chaos,
    client: Client,
    workload: Workload,
    options: Options,
    *,
    say: Callable[[str], None],
) -> Outcome:
    """Runs it all. `client` must have a short timeout: a frozen cluster is waited for here."""
    settings = chaos.settings
    _refuse_unless_whole(chaos, client)
    steps = plan(
        seed=options.seed,
        duration_s=options.duration_s,
        kinds=options.kinds,
        agents=settings.agents,
        voters=settings.voters,
        max_down=options.max_down,
    )
    keep = True
    try:
        workload.prepare()
        with Timeline(client, workload.news) as timeline:
            breaker = _Breaker(chaos, timeline, say)
            workload.start()
            try:
                breaker.break_things(steps, options)
            finally:
                ended_s = timeline.now_s
                taken_back = breaker.heal()
            steady_s = STEADY_TIMEOUTS * settings.tuning.failure_timeout_s
            healed_s = await_margin(
                client, timeline, settings.parity_shards, options, say, steady_s=steady_s
            )
            if not taken_back and not breaker.heal():
                healed_s = None  # what is planted still is held against it
            workload.stop()
        findings = workload.finish()
        verdict = judge(
            findings,
            healed=healed_s is not None,
            max_down=options.max_down,
            k=settings.parity_shards,
            planned=len(steps),
            planted=breaker.planted,
        )
        keep = not verdict.passed
    finally:
        workload.clean_up(keep=keep)
    return Outcome(
        options=options,
        cluster=settings.name,
        k=settings.parity_shards,
        agents=settings.agents,
        plan=steps,
        planted=breaker.planted,
        flipped=breaker.flipped,
        mended=breaker.mended,
        events=timeline.events,
        samples=timeline.samples,
        unit=workload.unit,
        slowdowns=measure(
            timeline.events, timeline.samples, ended_s=ended_s, bound=options.workload == EVEN
        ),
        healed=healed_s is not None,
        healed_after_s=healed_s,
        findings=findings,
        verdict=verdict,
    )


def _refuse_unless_whole(chaos: Chaos, client: Client) -> None:
    """What is broken before a run would be held against it."""
    if any(fault.kind != "kill" for fault in chaos.active):
        raise BadRequest("faults are planted already: run `diskless chaos heal` first")
    status, k = client.status(), chaos.settings.parity_shards
    if not status.is_whole():
        away = [agent.slot for agent in status.agents if agent.state != "up"]
        raise NotHealed(
            f"the cluster is not whole before the run: margin {status.margin} of {k}, "
            f"not up: {', '.join(away) or 'nobody'}; wait, or revive dead agents"
        )


class _Breaker:
    """Carries out a plan, and takes it back."""

    def __init__(self, chaos: Chaos, timeline: Timeline, say: Callable[[str], None]) -> None:
        self._chaos = chaos
        self._timeline = timeline
        self._say = say
        self._undo: list[tuple[float, Active, Event]] = []
        self.planted = 0
        self.flipped = 0
        self.mended = 0

    def break_things(self, steps: Sequence[Step], options: Options) -> None:
        """Returns when the time is over."""
        waiting = list(steps)
        while (now_s := self._timeline.now_s) < options.duration_s:
            self._undo_due(now_s)
            if waiting and waiting[0].at_s <= now_s and self._plant(waiting[0], options.max_down):
                waiting.pop(0)
            time.sleep(POLL_S)
        if waiting:
            self._note(
                "left out",
                f"{len(waiting)} of {len(steps)} faults: the cluster never afforded them",
            )

    def heal(self) -> bool:
        """Takes everything back; interrupting it would leave frozen agents behind.

        False when no agent answers: then there is a verdict to come all the same.
        """
        with _undisturbed():
            try:
                self.mended += self._chaos.heal().mended
            except DisklessError as error:
                self._note("not taken back", f"faults may be left, nobody answers: {error.reason}")
                return False
            for _, _, event in self._undo:
                self._close(event)
            self._undo.clear()
        self._note("heal", "all faults taken back")
        return True

    def _plant(self, step: Step, max_down: int) -> bool:
        """Whether it is done. What the cluster cannot bear, or answer, now is tried again."""
        try:
            done = self._chaos.plant(step, max_down=max_down)
        except (OverBudget, BadRequest):
            return False
        except DisklessError as error:
            if self._timeline.events[-1:] and self._timeline.events[-1].kind != "silent":
                self._note("silent", f"{step.kind} waits: {error.reason}")
            return False
        self.planted += 1
        self.flipped += sum(done.flipped.values())
        event = self._note(step.kind, describe(step, done.flipped), step.victims)
        if done.fault is not None and step.for_s:
            self._undo.append((self._timeline.now_s + step.for_s, done.fault, event))
        return True

    def _undo_due(self, now_s: float) -> None:
        for due in [due for due in self._undo if due[0] <= now_s]:
            _, fault, event = due
            try:
                self.mended += self._chaos.undo(fault).mended
            except DisklessError:
                continue  # It is tried again, and `heal` has the last word.
            self._undo.remove(due)
            self._close(event)
            self._say(f"{self._timeline.now_s:6.1f} s    over: {event.text}")

    def _close(self, event: Event) -> None:
        at = self._timeline.events.index(event)
        self._timeline.events[at] = Event(
            at_s=event.at_s,
            kind=event.kind,
            text=event.text,
            slots=event.slots,
            until_s=round(self._timeline.now_s, 3),
        )

    def _note(self, kind: str, text: str, slots: tuple[int, ...] = ()) -> Event:
        event = self._timeline.note(kind, text, slots)
        self._say(f"{event.at_s:6.1f} s  {text}")
        return event


def describe(step: Step, flipped: dict[int, int]) -> str:
    """A fault in words."""
    whom = ", ".join(slot_name(slot) for slot in step.victims)
    for_s = f" for {step.for_s:.1f} s"
    match step.kind:
        case "kill":
            return f"SIGKILL to {whom}"
        case "pause":
            return f"freeze {whom}{for_s}"
        case "partition":
            return f"cut {whom} off{for_s}"
        case "slow":
            return f"delay messages of {whom} by {step.delay_ms} ms{for_s}"
        case "corrupt":
            return f"flip a byte in {sum(flipped.values())} shards of {whom}{for_s}"
        case _:
            return f"take {step.share:.0%} of the memory of {whom}{for_s}"


def await_margin(
    client: Client,
    timeline: Timeline,
    k: int,
    options: Options,
    say: Callable[[str], None],
    *,
    steady_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """How long it took until everything was protected again; None if it was not in time.

    It must have stayed so for `steady_s`: an agent that was frozen or cut off a moment ago
    may be found missing only now.
    """
    began_s = timeline.now_s
    whole_since_s: float | None = None
    hopeless_since_s: float | None = None

    def lasted_s(since_s: float | None) -> float:
        return 0.0 if since_s is None else now_s - since_s

    say(f"{began_s:6.1f} s  waiting for margin {k}")
    now_s = began_s
    while lasted_s(whole_since_s) <= steady_s:
        status = _ask(client)
        if status is None or not status.is_whole():
            whole_since_s = None
        elif whole_since_s is None:
            whole_since_s = now_s
        if status is None or not _is_hopeless(status):
            hopeless_since_s = None
        elif hopeless_since_s is None:
            hopeless_since_s = now_s
        late = now_s - began_s > options.heal_timeout_s
        if whole_since_s is None and (late or lasted_s(hopeless_since_s) > HOPELESS_S):
            timeline.note("not healed", f"margin {k} was not reached")
            return None
        sleep(POLL_S)
        now_s = timeline.now_s
    assert whole_since_s is not None
    timeline.note("healed", f"margin {k} again")
    return round(whole_since_s - began_s, 2)


def _ask(client: Client) -> ClusterStatus | None:
    try:
        return client.status()
    except DisklessError:
        return None


def _is_hopeless(status: ClusterStatus) -> bool:
    """Everybody is here, and yet too few shards of something are left."""
    return status.stripes.lost > 0 and all(a.is_there() for a in status.agents)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM off until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])
