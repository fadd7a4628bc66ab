"""Space: frees dead stripes, repacks sparse ones, fences unfinished ones.

Runs on the leader. It moves files by commands that are conditional on the file being unchanged,
so it never races with clients. A shard is dropped only after the command that makes it
unreachable.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice

from diskless.agent.holders import deliver
from diskless.agent.leading.drainer import Drainer
from diskless.agent.leading.rewriter import REWRITE_BYTES_MAX, REWRITE_FILES_MAX, Rewriter
from diskless.agent.memory import lasting
from diskless.agent.ports import Pulse, ShardPeers, Undecided
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.agent.ticking import rest
from diskless.config import Tuning
from diskless.errors import DisklessError, TooFewShards
from diskless.eviction import HIGH_SHARE
from diskless.model import AgentInfo, FileRecord, ShardName, slot_name
from diskless.namespace import commands as c
from diskless.namespace.health import judge
from diskless.namespace.ledger import Entry
from diskless.namespace.state import NamespaceState
from diskless.policy import parity_of

log = logging.getLogger(__name__)

REAP_STRIPES_MAX = 1000
END_MOVES_MAX = 1000
SWEEP_ENTRIES = 800
"""Entries of deleted directories that one command removes: a few milliseconds."""
SWEEP_PAUSE_S = 0.01
SWEEPS_MAX = 200
"""Sweeps before other work continues."""
DEMOTE_BYTES_ENOUGH = 256 << 10
"""Fewer bytes wait longer for more files before they get a stripe of their own."""
DEMOTE_PATIENCE = 6
DEAD_SHARE_MAX = 1.4
"""Stored payload per live byte. Above this, fuller stripes are repacked too."""
THICKEN_MAX = 64
"""Rewrites of a few MiB with more parity before other work continues."""
PRESSURE_SHARE = 0.9
PRESSED_FREE_DELAY_S = 2.0
NO_MORE = 2**62
"""A fence above every stripe of a writer that will write no more."""


class Janitor:
    """Runs on the leader, over its state."""

    def __init__(
        self,
        *,
        replica: Replica,
        roster: Roster,
        holders: ShardPeers,
        rewriter: Rewriter,
        pulses: Mapping[int, Pulse],
        damaged: Callable[[], frozenset[ShardName]],
        drainer: Drainer | None = None,
        tuning: Tuning,
    ) -> None:
        """`pulses` are the agents' latest answers to this leader's beats. `damaged` returns the
        shards that agents have but cannot serve. Stripes that `drainer` still uploads are not
        freed."""
        self._drainer = drainer
        self._damaged = damaged
        self._replica = replica
        self._roster = roster
        self._holders = holders
        self._rewriter = rewriter
        self._pulses = pulses
        self._tuning = tuning

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    async def run(self) -> None:
        while True:
            await rest(self._tuning.janitor_interval_s)
            for work in (
                self.fence, self.reap, self.sweep, self.demote, self.thicken, self.repack,
            ):  # fmt: skip
                try:
                    await work()
                except DisklessError as error:
                    log.info("janitor put off work=%s error=%s", work.__name__, error)
                except Exception:  # otherwise nothing would be freed any more
                    log.exception("janitor failed work=%s", work.__name__)

    # -- freeing ----------------------------------------------------------------

    async def reap(self) -> None:
        """Forgets stripes that were freed long enough ago, then drops their shards. Stripes that a
        round to the tier may still read are kept until the round ends. If only such stripes are
        left and memory is short, the round is ended."""
        needed = self._needed()
        latest_ms = self._replica.elapsed_ms() - 1000 * self._free_delay_s()
        freed = self._state.ledger.freed_ms
        due: list[str] = []
        held = False
        for stripe, since_ms in freed.items():
            if since_ms > latest_ms or len(due) >= REAP_STRIPES_MAX:
                break
            if needed is None:
                held = True
                break
            if stripe in needed:
                held = True
            else:
                due.append(stripe)
        if not due:
            if held and self._is_pressed() and self._drainer is not None:
                self._drainer.end_round()
            return
        at: dict[int, list[str]] = defaultdict(list)
        for stripe in due:
            for place in self._state.ledger.get(stripe).places:
                if self._roster.holder(place) is not None:
                    at[place.slot].append(stripe)
        await self._replica.execute(c.Reap(tuple(due)))
        entries = self._state.ledger.entries
        # Not `set(due) - entries.keys()`: Python would iterate over all entries.
        gone = {stripe for stripe in due if stripe not in entries}
        await asyncio.gather(
            *(
                self._drop(self._roster.agents[slot], [s for s in stripes if s in gone])
                for slot, stripes in at.items()
            )
        )

    def _needed(self) -> Collection[str] | None:
        """Dead stripes that a round to the tier may still read; None if it may read any."""
        drainer = self._drainer
        return drainer.needed if drainer is not None and drainer.collecting else ()

    async def sweep(self) -> None:
        """Removes what recursive deletes have detached, with pauses for other work."""
        for _ in range(SWEEPS_MAX):
            if not self._state.doomed:
                return
            await self._replica.execute(c.Sweep(SWEEP_ENTRIES))
            await asyncio.sleep(SWEEP_PAUSE_S)

    def _free_delay_s(self) -> float:
        delay_s = self._tuning.free_delay_s
        pressed = self._is_pressed() or self._is_evicting()
        return min(delay_s, PRESSED_FREE_DELAY_S) if pressed else delay_s

    def _is_evicting(self) -> bool:
        """Whether eviction needs the freed memory. Readers then find the file in the tier."""
        return self._state.tier.attached and any(
            lasting(pulse.memory) > HIGH_SHARE * pulse.bytes_max for pulse in self._pulses.values()
        )

    def _is_pressed(self) -> bool:
        """Whether memory is short on any agent. Buffers of the drain do not count: they are freed
        soon anyway, and rounds that are ended because of them would never finish."""
        return any(
            pulse.bytes_used - pulse.memory.get("segments", 0) > PRESSURE_SHARE * pulse.bytes_max
            for pulse in self._pulses.values()
        )

    async def _drop(self, agent: AgentInfo, stripes: list[str]) -> None:
        await deliver(agent, self._holders.drop(agent, stripes))

    # -- fencing ----------------------------------------------------------------

    async def fence(self) -> None:
        """Fences the unfinished stripes of writers whose shards nobody claims.

        Also those of writers whose reaped stripes are remembered, so that they can be forgotten.
        Also ends moves that left shards behind, by making the stripe's next version.
        """
        await self._end_moves()
        if not self._knows_all_holds():
            return
        undecided = {writer for pulse in self._pulses.values() for writer in pulse.undecided}
        ledger = self._state.ledger
        found = {*undecided, *ledger.reaped, *ledger.doubted_ms}
        if new := tuple(sorted(writer for writer in found if self._is_doubtful(writer))):
            await self._replica.execute(c.Doubt(new))
        for writer in sorted(found):
            below, ledger = self._fence_for(writer), self._state.ledger
            if below is None:
                continue
            if below > ledger.fences.get(writer, 0) or writer in ledger.doubted_ms:
                log.info("fence writer=%s.%d below=%d", slot_name(writer[0]), writer[1], below)
                await self._replica.execute(c.Fence(writer[0], writer[1], below))

    def _knows_all_holds(self) -> bool:
        """Whether the pulses name all stripes that a client may still commit.

        An agent that ended no longer reports the stripes that it kept for its clients. Clients
        get as much time to continue with another agent as if the agent had lived.
        """
        since_ms = self._replica.elapsed_ms() - self._state.left_ms
        return since_ms >= 1000 * self._tuning.keep_s

    async def _end_moves(self) -> None:
        """Makes the version for which unclaimed shards were stored, without these shards."""
        entries = self._state.ledger.entries
        stripes = {
            stripe
            for pulse in self._pulses.values()
            for stripe, version in pulse.unclaimed
            if stripe in entries and version > entries[stripe].stripe.version
        }
        moves = [
            c.ShardMove(stripe, entries[stripe].stripe.version, ())
            for stripe in sorted(stripes)[:END_MOVES_MAX]
        ]
        if moves:
            await self._replica.execute(c.MoveShards(tuple(moves)))

    def _lives(self, writer: Undecided) -> bool:
        agent = self._state.agents.get(writer[0])
        return agent is not None and agent.incarnation == writer[1]

    def _is_doubtful(self, writer: Undecided) -> bool:
        """Whether to start the `orphan_delay` of a writer whose process has ended: the time for
        clients to continue with the stripes that it left."""
        ledger = self._state.ledger
        fenced = ledger.fences.get(writer, 0) >= NO_MORE
        return not (fenced or writer in ledger.doubted_ms or self._lives(writer))

    def _fence_for(self, writer: Undecided) -> int | None:
        """The number below which the writer has no unfinished stripe; None: not known yet.

        What agents report stays true: numbers only grow, and a stripe that is no longer held
        will not be held again, because its holder kept it for as long as its client could return.
        """
        slot, _ = writer
        lives = self._lives(writer)
        elapsed_ms = self._replica.elapsed_ms()
        since_ms = self._state.ledger.doubted_ms.get(writer, elapsed_ms)
        if not lives and elapsed_ms - since_ms < 1000 * self._tuning.orphan_delay_s:
            return None  # a client may still commit its stripes through another agent
        up = [a.slot for a in self._state.agents.values() if a.up]
        if any(other not in self._pulses for other in up):
            return None
        reported = [
            hold.counter
            for pulse in self._pulses.values()
            for hold in pulse.holds
            if (hold.slot, hold.incarnation) == writer
        ]
        if lives and not any(
            (hold.slot, hold.incarnation) == writer
            for hold in (self._pulses[slot].holds if slot in self._pulses else ())
        ):
            return None  # the writer itself has not reported yet
        return min(reported, default=NO_MORE)

    # -- packing ----------------------------------------------------------------

    async def demote(self) -> None:
        """Moves inline files into stripes after a delay."""
        delay_ms = 1000 * self._tuning.demote_delay_s
        elapsed_ms = self._replica.elapsed_ms()
        chosen: list[FileRecord] = []
        size = 0
        for id_, since_ms in self._state.demotable_ms.items():
            if since_ms > elapsed_ms - delay_ms or len(chosen) >= REWRITE_FILES_MAX:
                break
            record = self._state.files[id_].record
            chosen.append(record)
            size += record.size
            if size >= REWRITE_BYTES_MAX:
                break
        if not chosen:
            return
        oldest_ms = elapsed_ms - self._state.demotable_ms[chosen[0].id]
        if size >= DEMOTE_BYTES_ENOUGH or oldest_ms > DEMOTE_PATIENCE * delay_ms:
            await self._rewriter.rewrite(chosen, sparse=set())

    async def thicken(self) -> None:
        """Rewrites files whose stripes have less parity than the files ask for since they were
        renamed. Files that cannot be read now are retried later."""
        for _ in range(THICKEN_MAX):
            records, stripes = self._thinnest()
            if not records:
                return
            if not await self._rewriter.rewrite(records, sparse=stripes):
                return

    def _thinnest(self) -> tuple[list[FileRecord], set[str]]:
        """Some files, and the stripes to move them out of. A large file is moved in parts."""
        state = self._state
        chosen: list[FileRecord] = []
        stripes: set[str] = set()
        size = 0
        for id_ in islice(state.thin, REWRITE_FILES_MAX):
            record = state.files[id_].record
            asked = parity_of(record.grade, state.parity_shards)
            before = size
            for extent in record.extents:
                entry = state.ledger.entries[extent.stripe]
                if size >= REWRITE_BYTES_MAX:
                    break
                if entry.stripe.parity_shards < asked and state.health.is_readable(entry.group):
                    stripes.add(extent.stripe)
                    size += extent.length
            if size > before:
                chosen.append(record)
            if size >= REWRITE_BYTES_MAX:
                break
        return chosen, stripes

    async def repack(self) -> None:
        """Moves the live bytes of the sparsest stripes into full stripes."""
        sparse: set[str] = set()
        records: dict[int, FileRecord] = {}
        size = 0
        # One stripe at a time fits in the reserve of a full agent.
        size_max = self._tuning.stripe_bytes if self._is_pressed() else REWRITE_BYTES_MAX
        for entry in self._sparsest():
            if size + entry.live_bytes > size_max or len(records) > REWRITE_FILES_MAX:
                break
            sparse.add(entry.stripe.id)
            records |= {id_: self._state.files[id_].record for id_ in entry.files}
            size += entry.live_bytes
        if not sparse:
            return
        try:
            await self._rewriter.rewrite(list(records.values()), sparse=sparse)
        except TooFewShards as error:
            log.warning("repacking put off error=%s", error)

    def _sparsest(self) -> Iterator[Entry]:
        """Stripes worth repacking, the emptiest first."""
        state, ledger = self._state, self._state.ledger
        damaged = self._damaged()
        ill = {stripe for stripe, _ in damaged}
        kept = ledger.payload_bytes
        # An unreadable stripe would make the repack of all others fail.
        for share, id_ in ledger.partly_dead.sparsest(state.health.is_readable):
            dense = kept <= DEAD_SHARE_MAX * ledger.live_bytes
            if share >= self._tuning.repack_live_share and dense:
                return
            entry = ledger.entries[id_]
            if id_ in ill and judge(entry.stripe, state.agents, damaged).spare < 0:
                continue
            yield entry
            kept -= entry.stripe.payload_bytes - entry.live_bytes
