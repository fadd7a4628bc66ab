"""Changes that are acknowledged but not in the tier yet: the lag, and who waits because of it.

Answers for `sync` paths are held back until the change is within the horizon. Answers for
`barrier` paths are held back until the plans before them are (`namespace.plans` knows which).
Writers on all other paths except `memory` are slowed down while rounds succeed and the lag nears
its limit. While the tier does not answer they are not slowed down. This module uploads nothing to
the tier (`leading.drainer` does).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Protocol

from diskless import policy
from diskless.config import format_bytes
from diskless.errors import BadRequest, NotDurable, Superseded, Unavailable
from diskless.model import TierLag
from diskless.namespace import commands as c
from diskless.namespace import queries as q
from diskless.namespace.plans import BELOW_OFFSETS, is_plan
from diskless.namespace.state import NamespaceState
from diskless.namespace.tree import File

HOLD_S = 1.2
"""How long one request holds back an answer: shorter than the timeout of a call to the leader.
A caller that still wants the answer retries, and is held back again."""
LATE_HOLD_S = 0.3
"""The same while the tier is already late, so that a caller with a short deadline gets the reason
in time."""
SHARED_HOLD_S = 0.1
"""The same while rounds fail, for an answer shared with puts that need not wait."""
SLOW_FROM = 0.5
"""Writers are slowed down from this fraction of the largest lag."""
PRESS_FROM = 0.25
"""The drain stops yielding to clients from this fraction of the largest lag."""
SLOW_S_MAX = 0.5
"""The delay of a write at the largest lag. Twice that at most, when the lag is larger."""
SAMPLE_S = 0.02
SAMPLES_MAX = 4096
"""Samples of when changes arrived. Beyond this, every second sample is dropped: a tier may not
answer for days."""
FILES_SLICE = 2000
BUCKET_FILES = 256


class Watched(Protocol):
    @property
    def state(self) -> NamespaceState: ...


class Backlog:
    def __init__(self, *, world: Watched, now_s: Callable[[], float]) -> None:
        self._world = world
        self._now_s = now_s
        self._samples: deque[tuple[int, float]] = deque()  # a change, when first seen
        self._seen = 0
        self._sizes: deque[tuple[int, int]] = deque()  # last file of a bucket, its bytes
        self._seen_file = 0
        self._moved = asyncio.Event()
        self.waiting = 0
        """Answers that are held back."""
        self.work = asyncio.Event()
        """Set when something must be uploaded to the tier, or somebody waits for it."""
        self.hurried = False
        """Whether memory is short until more is in the tier. Rounds then follow without a pause."""
        self.failing = False
        """Whether the last round failed. Nobody is slowed down then."""
        self._wanted = 0
        self.over: Superseded | None = None
        self._left = False

    # -- for the leader -------------------------------------------------------------

    def before(self, command: c.Command) -> Awaitable[None] | None:
        """As Leadership says."""
        state = self._world.state
        if not state.tier.attached or not isinstance(command, _MUTATIONS):
            return None
        if self.over is not None:
            if self._awaited(command) and not self._is_shared(command):
                raise Superseded(str(self.over))
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
        if self._plans(command):  # make it durable before anything waits for it
            self._wanted = state.tier.change
        self.note()
        change = self._awaited(command)
        if change <= state.tier.horizon_change:
            return None
        return self.reach(change, self._hold_s(command))

    def _hold_s(self, command: c.Command) -> float:
        if self.failing and self._is_shared(command):
            return SHARED_HOLD_S
        return LATE_HOLD_S if self.failing or self._lag_s() > HOLD_S else HOLD_S

    def concerns(self, put: c.Put) -> bool:
        """As Leadership says."""
        state = self._world.state
        default = state.tier.default_durability
        for file in put.files:
            asked = state.policies.durability(file.path, default=default)
            if asked == policy.SYNC:
                return True
            if asked == policy.BARRIER and self._planned(file.path) > state.tier.horizon_change:
                return True
        return False

    def before_answer(self, query: q.Query) -> int:
        """As Leadership says. A restarted query runs a plan that it finds, and does not write it
        again. So it must not find a plan that could still be lost."""
        if isinstance(query, q.TierState) and query.awaited:
            self._want(query.awaited)
            return 0
        if not isinstance(query, q.Open | q.OpenMany) or not self._has_barriers():
            return 0
        opened = (query.path,) if isinstance(query, q.Open) else query.paths
        return max((self._before_opening(path) for path in opened), default=0)

    def _before_opening(self, path: str) -> int:
        if BELOW_OFFSETS not in path or not self._is_barrier(path):
            return 0
        state = self._world.state
        try:
            node = state.tree.find(path)
        except BadRequest:  # opening this path itself reports the error
            return 0
        if not isinstance(node, File):
            return 0
        is_new = node.record.id > state.tier.horizon_file
        change = state.tier.plans.before_opening(path, is_new=is_new)
        return change if change > state.tier.horizon_change else 0

    def _want(self, change: int) -> None:
        """Somebody waits for this change and polls how far the tier is."""
        self._wanted = max(self._wanted, min(change, self._world.state.tier.change))
        self.work.set()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the horizon, or soon will."""
        return self.waiting > 0 or self._wanted > self._world.state.tier.horizon_change

    def _is_shared(self, command: c.Command) -> bool:
        """Whether the command has puts that need not wait."""
        return isinstance(command, c.Commit) and not all(map(self.concerns, command.puts))

    async def reach(self, change: int, timeout_s: float) -> None:
        """Returns when the horizon has reached `change`. Raises NotDurable, Superseded,
        Unavailable."""
        self.waiting += 1
        self.work.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._world.state.tier.horizon_change < change:
                    if self.over is not None:
                        raise Superseded(str(self.over))
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
            f"not durable yet: {uri} is {lag.seconds:.1f} s, {lag.commands} commands "
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
                if len(self._samples) > SAMPLES_MAX:  # the dropped ones then seem older
                    self._samples = deque(islice(self._samples, 0, None, 2))
            self._seen = tier.change
        self.work.set()

    def begin(self) -> None:
        """Changes that are already beyond the horizon count from now on."""
        self._seen = self._world.state.tier.horizon_change
        self._seen_file = self._world.state.tier.horizon_file
        self.note()

    def moved(self) -> None:
        """The horizon has moved."""
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
        """Another agent leads: callers that are held back here retry there."""
        self._left = True
        self.moved()

    def end(self, error: Superseded) -> None:
        """Nothing more will become durable, as long as the tier is this one."""
        self.over = error
        self.moved()

    def resume(self) -> None:
        """It is another one."""
        self.over = None

    @property
    def presses(self) -> bool:
        """Whether clients wait for the tier or for memory, or will soon be slowed down."""
        lag_max_s = self._world.state.tier.options.lag_max_s
        return self.is_awaited or self.hurried or self._lag_s() > PRESS_FROM * lag_max_s

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
        """The bytes of new files beyond the horizon. Each call looks at a bounded number of files,
        so the sum may lag behind."""
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

    def _awaited(self, command: c.Command) -> int:
        """The change that must be durable before a command is acknowledged; 0 if none must."""
        state = self._world.state
        if self._asks(command, policy.SYNC):
            return state.tier.change
        if not self._has_barriers():
            return 0
        asking = (path for path in _places(command) if self._is_barrier(path))
        return max(map(self._planned, asking), default=0)

    def _planned(self, path: str) -> int:
        """The change that must be durable before a put at a `barrier` path is acknowledged. Once
        another cluster continues with the tier, this is a change that never comes."""
        state = self._world.state
        if self.over is not None:
            return state.tier.change + 1
        return state.tier.plans.before_answer(state.tree, path)

    def _plans(self, command: c.Command) -> bool:
        tree = self._world.state.tree
        return self._has_barriers() and any(
            BELOW_OFFSETS in path and self._is_barrier(path) and is_plan(tree, path)
            for path in _places(command)
        )

    def _has_barriers(self) -> bool:
        state = self._world.state
        return state.tier.attached and state.has_barriers

    def _is_barrier(self, path: str) -> bool:
        state = self._world.state
        default = state.tier.default_durability
        return state.policies.durability(path, default=default) == policy.BARRIER

    def _asks(self, command: c.Command, value: str) -> bool:
        state = self._world.state
        if not state.policies.table:  # the usual case
            return state.tier.default_durability == value
        return any(asked == value for asked in self._asked(command))

    def _asked(self, command: c.Command) -> Iterable[str]:
        state = self._world.state
        default = state.tier.default_durability
        for path in _paths(command):
            yield state.policies.durability(path, default=default)
            if not isinstance(command, c.Commit):  # it also affects what is below
                yield from state.policies.below(path, policy.DURABILITY)


_MUTATIONS = (c.Commit, c.Mkdirs, c.Rename, c.Delete, c.CreateSnapshot, c.RenameSnapshot,
              c.DeleteSnapshots, c.Clone, c.Rollback, c.SetPolicy, c.RemovePolicy, c.Prune,
              c.Replace, c.IssueToken, c.RevokeToken)  # fmt: skip


def _places(command: c.Command) -> Iterable[str]:
    """The paths that a command writes."""
    match command:
        case c.Commit(puts=puts):
            return (file.path for put in puts for file in put.files)
        case c.Rename(target=target) | c.Clone(target=target):
            return (target,)
        case _:
            return ()


def _paths(command: c.Command) -> Iterable[str]:
    """The paths that a command changes."""
    match command:
        case c.Commit(puts=puts):
            return (file.path for put in puts for file in put.files)
        case c.Rename(source=source, target=target):
            return (source, target)
        case c.Clone(target=target):
            return (target,)
        case c.CreateSnapshot(paths=paths):
            return paths
        case c.Rollback(cut=True):  # of all directories of the cut, whatever its path says
            return ("/",)
        case c.Replace(swaps=swaps):
            return (swap.path for swap in swaps)
        case c.IssueToken() | c.RevokeToken():
            return ("/",)
        case _:
            return (getattr(command, "path", "/"),)
