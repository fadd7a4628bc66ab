"""The leader's inputs for choosing how fast all agents check what they hold."""

from collections.abc import Callable, Collection, Mapping

from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.model import ShardName
from diskless.upkeep import USUAL, Pace, choose_pace, count_lately

LOOK_S = 5.0
"""The time between two choices. Changes are counted over it."""


class Upkeep:
    def __init__(
        self,
        *,
        replica: Replica,
        pulses: Mapping[int, Pulse],
        damaged: Callable[[], Collection[ShardName]],
        now_s: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._pulses = pulses
        self._damaged = damaged
        self._now_s = now_s
        self._looked_s = self._changed_s = now_s()
        self._damage_s: float | None = None
        self._seen: dict[str, int] = {}
        """Damaged shards that each process of an agent has found."""
        self._changes = 0
        self.pace = Pace(USUAL, "the leader has just begun")

    def note_change(self) -> None:
        """A client's command was committed."""
        self._changes += 1

    def look(self) -> float:
        """The pace. Chosen again if it is time."""
        now_s = self._now_s()
        if self._finds_damage():
            self._damage_s = now_s
        if now_s - self._looked_s >= LOOK_S:
            if self._changes:
                self._changed_s = now_s
            state = self._replica.state
            self.pace = choose_pace(
                damage_s=None if self._damage_s is None else now_s - self._damage_s,
                lapses=count_lately(state.roster.lapses, elapsed_ms=self._replica.elapsed_ms()),
                changes_per_s=self._changes / (now_s - self._looked_s),
                idle_s=now_s - self._changed_s,
            )
            self._looked_s, self._changes = now_s, 0
        return self.pace.factor

    def _finds_damage(self) -> bool:
        """Whether a shard is damaged, or an agent has found one since the last call. Damage found
        before an agent's first pulse to this leader does not count."""
        seen = {pulse.boot: pulse.corrupt_shards_seen for pulse in self._pulses.values()}
        news = any(count > self._seen.get(boot, count) for boot, count in seen.items())
        self._seen = seen
        return news or bool(self._damaged())
