"""What is acknowledged and not in the tier yet: the lag, and who waits because of it.

Answers on paths that ask for `sync` are held back until they are within the horizon; writers on
all others but `memory` are slowed down while rounds succeed and the lag nears its bound. While the
tier is silent they go on. Nothing here brings anything into the tier (`leading.drainer`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Protocol

from diskless import policy
from diskless.config import format_bytes
from diskless.errors import NotDurable, Superseded, Unavailable
from diskless.model import TierLag
from diskless.namespace import commands as c
from diskless.namespace.state import NamespaceState

HOLD_S = 1.2
"""How long an answer is held back at once: less than others wait for a leader. Whoever still
wants it asks again, and is held back again."""
SHARED_HOLD_S = 0.1
"""The same while rounds fail, for answers that others wait for who did not ask for `sync`."""
SLOW_FROM = 0.5
"""The part of the largest lag from which on writers are slowed down."""
SLOW_S_MAX = 0.5
"""By how much, at the largest lag; beyond it by as much again for each such lag more."""
SAMPLE_S = 0.02
SAMPLES_MAX = 4096
"""Of when changes came. Beyond it every second one goes: a tier may be silent for days."""
FILES_SLICE = 2000
BUCKET_FILES = 256


class Watched(Protocol):
    @property
    def state(self) -> NamespaceState: ...


class Backlog:
    def __init__(self, *, world: Watched, now_s: Callable[[], float]) -> None:
        self._world = world
        self._now_s = now_s
        self._samples: deque[tuple[int, float]] = deque()  # a change, and when it was not there yet
        self._seen = 0
        self._sizes: deque[tuple[int, int]] = deque()  # up to a file, bytes of so many before it
        self._seen_file = 0
        self._moved = asyncio.Event()
        self.waiting = 0
        """Answers that are held back."""
        self.work = asyncio.Event()
        """Something is to be brought into the tier, or somebody waits for it."""
        self.failing = False
        """Whether the last round failed: then nobody is slowed down."""
        self.over: Superseded | None = None
        self._left = False

    # -- for the leader -------------------------------------------------------------

    def before(self, command: c.Command) -> Awaitable[None] | None:
        """As Leadership says."""
        state = self._world.state
        if not state.tier.attached or not isinstance(command, _MUTATIONS):
            return None
        if self.over is not None:
            if self._asks(command, policy.SYNC) and not self._is_shared(command):
                raise self.over
            return None
        if self.failing:
            return None
        slow_s = self._slow_s()
        if slow_s <= 0 or not self._is_durable(command):
            return None
        return asyncio.sleep(slow_s)

    def after(self, command: c.Command) -> Awaitable[None] | None:
        """As Leadership says."""
        state = self._world.state
        if not state.tier.attached or not isinstance(command, _MUTATIONS):
            return None
        self.note()
        if not self._asks(command, policy.SYNC):
            return None
        hold_s = SHARED_HOLD_S if self.failing and self._is_shared(command) else HOLD_S
        return self.reach(state.tier.change, hold_s)

    def concerns(self, put: c.Put) -> bool:
        """As Leadership says."""
        state = self._world.state
        default = state.tier.default_durability
        return any(
            state.policies.durability(file.path, default=default) == policy.SYNC
            for file in put.files
        )

    def _is_shared(self, command: c.Command) -> bool:
        """Whether it has puts that need not wait."""
        return isinstance(command, c.Commit) and not all(map(self.concerns, command.puts))

    async def reach(self, change: int, timeout_s: float) -> None:
        """Returns when the horizon is there. Raises NotDurable, Superseded."""
        self.waiting += 1
        self.work.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._world.state.tier.horizon_change < change:
                    if self.over is not None:
                        raise self.over
                    if self._left:
                        raise Unavailable("the leader changed before the answer was durable")
                    await self._moved.wait()
        except TimeoutError:
            raise self._behind() from None
        finally:
            self.waiting -= 1

    def _behind(self) -> NotDurable:
        lag = self.lag()
        uri = self._world.state.tier.uri
        return NotDurable(
            f"done, but not durable yet: {uri} is {lag.seconds:.1f} s, {lag.commands} commands "
            f"and {format_bytes(lag.bytes)} behind"
        )

    # -- for the drainer ------------------------------------------------------------

    def note(self) -> None:
        """Something may have changed."""
        tier = self._world.state.tier
        now_s = self._now_s()
        if tier.change > self._seen:
            if not self._samples or now_s - self._samples[-1][1] >= SAMPLE_S:
                self._samples.append((self._seen + 1, now_s))
                if len(self._samples) > SAMPLES_MAX:  # what lies between then seems older
                    self._samples = deque(islice(self._samples, 0, None, 2))
            self._seen = tier.change
        self.work.set()

    def begin(self) -> None:
        """What is beyond the horizon already counts from now on."""
        self._seen = self._world.state.tier.horizon_change
        self._seen_file = self._world.state.tier.horizon_file
        self.note()

    def moved(self) -> None:
        """The horizon has."""
        tier = self._world.state.tier
        self.note()
        while len(self._samples) > 1 and self._samples[1][0] <= tier.horizon_change + 1:
            self._samples.popleft()
        if self._samples and tier.change <= tier.horizon_change:
            self._samples.clear()
        while self._sizes and self._sizes[0][0] <= tier.horizon_file:
            self._sizes.popleft()
        self._moved.set()
        self._moved = asyncio.Event()

    def leave(self) -> None:
        """Another leads: whoever is held back here asks there."""
        self._left = True
        self.moved()

    def end(self, error: Superseded) -> None:
        """Nothing will be durable any more."""
        self.over = error
        self.moved()

    def lag(self) -> TierLag:
        tier = self._world.state.tier
        commands = max(tier.change - tier.horizon_change, 0) if tier.attached else 0
        return TierLag(
            seconds=self._lag_s() if commands else 0.0,
            bytes=self._bytes() if commands else 0,
            commands=commands,
        )

    def _lag_s(self) -> float:
        return self._now_s() - self._samples[0][1] if self._samples else 0.0

    def _bytes(self) -> int:
        """Of new files beyond the horizon, as far as they were looked at, which is bounded."""
        state = self._world.state
        at = max(self._seen_file, state.tier.horizon_file)
        end = min(state.last_file, at + FILES_SLICE)
        while at < end:
            upto = min(at + BUCKET_FILES, end)
            found = (state.files.get(id_) for id_ in range(at + 1, upto + 1))
            self._sizes.append((upto, sum(file.record.size for file in found if file)))
            at = upto
        self._seen_file = at
        return sum(size for _, size in self._sizes)

    def _slow_s(self) -> float:
        tier = self._world.state.tier
        if not self._samples or tier.change <= tier.horizon_change:
            return 0.0
        share = self._lag_s() / tier.options.lag_max_s
        return min((share - SLOW_FROM) / (1 - SLOW_FROM), 2.0) * SLOW_S_MAX

    # -- what commands ask for ------------------------------------------------------

    def _is_durable(self, command: c.Command) -> bool:
        return not self._world.state.policies.table or any(
            value != policy.MEMORY for value in self._asked(command)
        )

    def _asks(self, command: c.Command, value: str) -> bool:
        state = self._world.state
        if not state.policies.table:  # as nearly always
            return state.tier.default_durability == value
        return any(asked == value for asked in self._asked(command))

    def _asked(self, command: c.Command) -> Iterable[str]:
        state = self._world.state
        default = state.tier.default_durability
        for path in _paths(command):
            yield state.policies.durability(path, default=default)
            if not isinstance(command, c.Commit):  # what lies below goes with it
                yield from state.policies.below(path, policy.DURABILITY)


_MUTATIONS = (c.Commit, c.Mkdirs, c.Rename, c.Delete, c.CreateSnapshot, c.RenameSnapshot,
              c.DeleteSnapshots, c.Clone, c.Rollback, c.SetPolicy, c.RemovePolicy,
              c.IssueToken, c.RevokeToken)  # fmt: skip


def _paths(command: c.Command) -> Iterable[str]:
    """Where a command changes something."""
    match command:
        case c.Commit(puts=puts):
            return (file.path for put in puts for file in put.files)
        case c.Rename(source=source, target=target):
            return (source, target)
        case c.Clone(target=target):
            return (target,)
        case c.CreateSnapshot(paths=paths):
            return paths
        case c.IssueToken() | c.RevokeToken():
            return ("/",)
        case _:
            return (getattr(command, "path", "/"),)
