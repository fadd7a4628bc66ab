"""Faults in a live cluster: planted within the budget, and undone.

The record is the truth about what is planted. After every change `_settle` tells each agent
the sum of what concerns it, so faults may overlap and be undone in any order, and an agent
that was away hears of it with the next change. Everything that takes an agent down is
kept on record before it is done: a command that dies half way leaves `heal` something to find.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from diskless.agent.faults import NOT_ARMED
from diskless.chaos import budget
from diskless.chaos.budget import Active, Down
from diskless.chaos.planter import FaultPlanter
from diskless.chaos.record import Page, Record
from diskless.chaos.schedule import Step
from diskless.client import Client
from diskless.client.descriptor import Descriptor
from diskless.config import ClusterSettings
from diskless.errors import BadRequest, DisklessError, Forbidden, Unavailable
from diskless.model import check_slots, parse_slot
from diskless.protocol.operating import Faults, Planted

HEAL_TIMEOUT_S = 10.0
POLL_S = 0.2
BY_SIGNAL = {"kill", "pause"}
"""Done to processes; every other kind is planted in agents, which must be armed for it."""


class Signals(Protocol):
    """What is done to the processes of agents, on whichever host they are."""

    def kill(self, slots: Sequence[int], *, stay_dead: bool) -> dict[int, int]:
        """SIGKILLs them all at once; gives their process ids. Raises BadRequest."""

    def pids(self, slots: Sequence[int]) -> dict[int, int]:
        """Raises BadRequest if one does not run."""

    def freeze(self, pids: Mapping[int, int]) -> None:
        """Returns when no thread of theirs runs any more. Raises DeadlineExceeded."""

    def thaw(self, pids: Mapping[int, int]) -> list[int]:
        """Gives the slots that still were those processes."""

    def kill_host(self, host: str) -> list[int]:
        """Ends the agents and the raylet of a host; gives the agents' slots."""


class Done(Struct, frozen=True, kw_only=True):
    """What planting or undoing a fault did."""

    fault: Active | None = None
    flipped: dict[int, int] = {}
    """Shards in which a byte was flipped, by slot."""
    mended: int = 0
    """Shards that still were damaged and were made good."""
    resumed: list[int] = []
    untold: list[int] = []
    """Agents that could not be told: dead, frozen, or away."""


class Chaos:
    def __init__(self, known: Descriptor, client: Client, signals: Signals) -> None:
        self.settings = ClusterSettings.from_dict(known.settings)
        self._client = client
        self._planter = FaultPlanter(known, client)
        self._signals = signals
        self._record = Record(known.name, known.cluster)

    @property
    def active(self) -> list[Active]:
        return self._record.read()

    def down(self) -> Down:
        """How many agents are down now, and why each of them."""
        with self._record.changing() as active:
            return self._down(active)

    def plant(self, step: Step, *, max_down: int, stay_dead: bool = False) -> Done:
        """Does what a step says, now. Raises OverBudget, BadRequest, Forbidden, Unavailable."""
        self.check_slots(step.victims)
        self.check_armed([step.kind])
        with self._record.changing() as active:
            victims = self._victims(step)
            if step.kind not in budget.HARMLESS:
                down = self._down(active)
                k = self.settings.parity_shards
                budget.refuse_beyond(down, victims, max_down=max_down, k=k)
            match step.kind:
                case "kill":
                    return self._kill(active, step, stay_dead=stay_dead)
                case "pause":
                    return self._pause(active, step)
                case "corrupt":
                    return self._corrupt(active, step)
            fault = Active(
                kind=step.kind,
                slots=tuple(victims),
                delay_ms=step.delay_ms,
                share=step.share,
            )
            active.append(fault)
            active.keep()
            return Done(fault=fault, untold=self._settle(active))

    def pids(self, slots: Sequence[int]) -> dict[int, int]:
        """The processes of agents. Raises BadRequest for one that does not run."""
        self.check_slots(slots)
        return self._signals.pids(slots)

    def kill_host(self, host: str, *, max_down: int) -> list[int]:
        """Ends a host of the cluster: its agents and its Ray. Raises OverBudget, BadRequest."""
        with self._record.changing() as active:
            status = self._client.status()
            agents = {parse_slot(a.slot): a for a in status.agents if a.host}
            victims = [slot for slot, agent in agents.items() if host_matches(agent.host, host)]
            hosts = sorted({agent.host for agent in agents.values()})
            if not victims:
                raise BadRequest(f"no agent is on host {host!r}: there are {', '.join(hosts)}")
            if len(hosts) == 1:
                raise BadRequest(
                    "all agents are on one host: killing it ends the cluster and all its files; "
                    "kill agents with `diskless chaos kill`, or end it with `diskless down`"
                )
            k = self.settings.parity_shards
            budget.refuse_beyond(self._down(active), victims, max_down=max_down, k=k)
            lives = {slot: agents[slot].incarnation for slot in victims}
            active.append(Active(kind="kill", slots=tuple(victims), incarnations=lives))
            active.keep()
            return self._signals.kill_host(agents[victims[0]].host)

    def undo(self, fault: Active) -> Done:
        """Takes one planted fault back; nothing happens if somebody has done so already."""
        with self._record.changing() as active:
            if fault not in active:
                return Done()
            if fault.kind == "corrupt":
                mended = self._mend(fault.slots)
                active.remove(fault)
                return Done(mended=mended)
            resumed = self._signals.thaw(fault.pids) if fault.pids else []
            active.remove(fault)
            return Done(resumed=resumed, untold=self._settle(active))

    def resume(self, slots: Collection[int]) -> list[int]:
        """Thaws those of the slots that are frozen."""
        thawed: list[int] = []
        with self._record.changing() as active:
            for fault in [
                fault for fault in active if fault.pids and set(slots) & fault.pids.keys()
            ]:
                mine = {slot: pid for slot, pid in fault.pids.items() if slot in slots}
                thawed += self._signals.thaw(mine)
                active.remove(fault)
                rest = {slot: pid for slot, pid in fault.pids.items() if slot not in slots}
                if rest:
                    active.append(replace(fault, slots=tuple(rest), pids=rest))
            self._settle(active)
        return sorted(thawed)

    def heal(self) -> Done:
        """Takes everything back that can be: thaws, reconnects, empties, flips back.

        What was killed is for Ray, and the repairer, to bring back.
        """
        with self._record.changing() as active:
            frozen = {slot: pid for fault in active for slot, pid in fault.pids.items()}
            resumed = self._signals.thaw(frozen) if frozen else []
            planted, untold = self._tell_all(Faults(heal=True), patience_s=HEAL_TIMEOUT_S)
            # Not before they have been told: who finds nobody leaves the record as it was.
            active[:] = [fault for fault in active if fault.kind == "kill"]
            return Done(
                mended=sum(answer.mended for answer in planted.values()),
                resumed=resumed,
                untold=untold,
            )

    # Kinds of faults. Whoever calls holds the record.

    def _victims(self, step: Step) -> Sequence[int]:
        if step.kind != "partition":
            return step.victims
        return budget.lost_side(
            step.victims, agents=self.settings.agents, voters=self.settings.voters
        )

    def _kill(self, active: Page, step: Step, *, stay_dead: bool) -> Done:
        status = self._client.status()
        lives = {parse_slot(a.slot): a.incarnation for a in status.agents}
        self._signals.pids(step.victims)
        fault = Active(
            kind="kill", slots=step.victims, incarnations={s: lives[s] for s in step.victims}
        )
        active.append(fault)
        active.keep()
        self._signals.kill(step.victims, stay_dead=stay_dead)
        return Done(fault=fault)

    def _pause(self, active: Page, step: Step) -> Done:
        pids = self._signals.pids(step.victims)
        fault = Active(kind="pause", slots=step.victims, pids=pids)
        active.append(fault)
        active.keep()
        self._signals.freeze(pids)
        return Done(fault=fault)

    def _corrupt(self, active: Page, step: Step) -> Done:
        """Every victim chooses its shards by itself, so all victims count as down."""
        peers = self._planter.peers()
        flipped: dict[int, int] = {}
        fault = Active(kind="corrupt", slots=step.victims)
        active.append(fault)
        active.keep()
        for slot in step.victims:
            wish = Faults(corrupt=step.shards, seed=step.seed + slot)
            flipped[slot] = self._planter.plant(peers[slot], wish).flipped
        return Done(fault=fault, flipped=flipped)

    def _mend(self, slots: Iterable[int]) -> int:
        """An agent that does not answer is asked again with the next try, or by `heal`."""
        peers = self._planter.peers()
        return sum(self._planter.plant(peers[slot], Faults(mend=True)).mended for slot in slots)

    # Telling agents.

    def _settle(self, active: Sequence[Active]) -> list[int]:
        """Tells every agent that can hear it what is planted in it; gives the others."""
        frozen = {slot for fault in active for slot in fault.pids}
        wishes = wanted(active, self.settings)
        untold = []
        for slot, peer in self._planter.peers().items():
            if slot in frozen or not self._tell(peer, wishes[slot]):
                untold.append(slot)
        return untold

    def _tell(self, peer: Any, faults: Faults) -> bool:
        try:
            self._planter.plant(peer, faults)
        except Unavailable:
            return False
        return True

    def _tell_all(
        self, faults: Faults, *, patience_s: float
    ) -> tuple[dict[int, Planted], list[int]]:
        """Asks every agent until it answers: one that was just thawed needs a moment."""
        answers: dict[int, Planted] = {}
        end_s = time.monotonic() + patience_s
        while True:
            peers = self._planter.peers()
            for slot, peer in peers.items():
                if slot not in answers:
                    try:
                        answers[slot] = self._planter.plant(peer, faults)
                    except Unavailable:
                        continue
            untold = [slot for slot in peers if slot not in answers]
            if not untold or time.monotonic() > end_s:
                return answers, untold
            if all(not peers[slot].up for slot in untold):
                return answers, untold  # Dead: a new life begins without faults.
            time.sleep(POLL_S)

    # The budget.

    def _down(self, active: Page) -> Down:
        """Also forgets what has healed by itself: returned agents, rebuilt shards."""
        status = self._client.status()
        damaged = self._damaged(active)
        active[:] = [f for f in active if f.kind != "corrupt" or damaged.keys() & set(f.slots)]
        others = [fault for fault in active if fault.kind != "corrupt"]
        down = budget.count_down(status, others, damaged)
        active[:] = [f for f in active if f.kind != "kill" or down.why.keys() & set(f.slots)]
        return down

    def _damaged(self, active: Iterable[Active]) -> dict[int, int]:
        """How many flipped shards each slot still holds, of those that hold any."""
        suspects = {slot for fault in active if fault.kind == "corrupt" for slot in fault.slots}
        if not suspects:
            return {}
        peers = self._planter.peers()
        counts = {slot: self._count_damaged(peers[slot]) for slot in sorted(suspects)}
        return {slot: count for slot, count in counts.items() if count}

    def _count_damaged(self, peer: Any) -> int:
        """One that does not answer has at least one, as far as we know."""
        try:
            return self._planter.plant(peer, Faults()).damaged
        except DisklessError:
            return 1

    def check_armed(self, kinds: Iterable[str]) -> None:
        """Raises Forbidden if one of them is planted in agents, and this cluster's take none."""
        if not self.settings.chaos and not {*kinds} <= BY_SIGNAL:
            raise Forbidden(NOT_ARMED)

    def check_slots(self, slots: Iterable[int]) -> None:
        """Raises BadRequest for a slot that the cluster does not have."""
        check_slots(list(slots), agents=self.settings.agents)


def wanted(active: Iterable[Active], settings: ClusterSettings) -> dict[int, Faults]:
    """What each agent must be told: the sum of all faults that concern it. Pure."""
    everybody = set(range(settings.agents))
    cut: dict[int, set[int]] = {slot: set() for slot in everybody}
    delays_ms: dict[int, dict[int, int]] = {slot: {} for slot in everybody}
    ballast = dict.fromkeys(everybody, 0)
    for fault in active:
        inside = set(fault.slots)
        for slot in everybody:
            across = everybody - inside if slot in inside else inside
            if fault.kind == "partition":
                cut[slot] |= across
            elif fault.kind == "slow":
                for peer in (everybody - {slot}) if slot in inside else inside:
                    delays_ms[slot][peer] = max(delays_ms[slot].get(peer, 0), fault.delay_ms)
            elif fault.kind == "fill" and slot in inside:
                ballast[slot] += int(fault.share * settings.memory_bytes)
    return {
        slot: Faults(cut=sorted(cut[slot]), delays_ms=delays_ms[slot], ballast_bytes=ballast[slot])
        for slot in everybody
    }


def host_matches(known: str, asked: str) -> bool:
    """A host is `name/address` in status; either part will do."""
    return asked == known or asked in known.split("/")
