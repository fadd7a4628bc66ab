"""Space: frees what is dead, packs what is sparse, fences what was never finished.

Runs on the leader. Everything it moves is moved by a command that is conditional on the
file being unchanged, so it never races with clients. A shard is dropped only after the
command that makes it unreachable.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from diskless.agent.leading.drainer import Drainer
from diskless.agent.leading.rewriter import REWRITE_BYTES_MAX, REWRITE_FILES_MAX, Rewriter
from diskless.agent.ports import Pulse, ShardPeers, Undecided
from diskless.agent.replica import Replica
from diskless.agent.roster import Roster
from diskless.config import Tuning
from diskless.errors import DisklessError, TooFewShards, Unavailable
from diskless.model import AgentInfo, FileRecord, ShardName, slot_name
from diskless.namespace import commands as c
from diskless.namespace.health import judge
from diskless.namespace.ledger import Entry
from diskless.namespace.state import NamespaceState

log = logging.getLogger(__name__)

REAP_STRIPES_MAX = 1000
END_MOVES_MAX = 1000
SWEEP_ENTRIES = 1000
"""Of deleted directories, taken apart by one command: a few milliseconds."""
SWEEP_PAUSE_S = 0.01
SWEEPS_MAX = 200
"""Before other work has its turn again."""
DEMOTE_BYTES_ENOUGH = 256 << 10
"""Less than this waits longer for company before it gets a stripe of its own."""
DEMOTE_PATIENCE = 6
DEAD_SHARE_MAX = 1.4
"""Payload kept for each live byte before fuller stripes are repacked too."""
PRESSURE_SHARE = 0.9
PRESSED_FREE_DELAY_S = 2.0
NO_MORE = 2**62
"""A fence above every stripe of a writer that has no future."""


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
        """`pulses` are the latest answers of agents to this leader's beats; `damaged` tells
        which shards agents have and cannot give. What `drainer` still brings to the tier is
        not freed under its hands."""
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
            await asyncio.sleep(self._tuning.janitor_interval_s)
            for work in (self.fence, self.reap, self.sweep, self.demote, self.repack):
                try:
                    await work()
                except DisklessError as error:
                    log.info("janitor put off work=%s error=%s", work.__name__, error)
                except Exception:  # else nothing would ever be freed again
                    log.exception("janitor failed work=%s", work.__name__)

    # -- freeing ----------------------------------------------------------------

    async def reap(self) -> None:
        """Forgets stripes freed long enough ago, then drops their shards."""
        if self._drainer is not None and self._drainer.collecting:
            if not self._is_pressed():
                return
            self._drainer.end_round()
        latest_ms = self._replica.elapsed_ms() - 1000 * self._free_delay_s()
        freed = self._state.ledger.freed_ms
        due: list[str] = []
        for stripe, since_ms in freed.items():
            if since_ms > latest_ms or len(due) >= REAP_STRIPES_MAX:
                break
            due.append(stripe)
        if not due:
            return
        at: dict[int, list[str]] = defaultdict(list)
        for stripe in due:
            for place in self._state.ledger.get(stripe).places:
                if self._roster.holder(place) is not None:
                    at[place.slot].append(stripe)
        await self._replica.execute(c.Reap(tuple(due)))
        entries = self._state.ledger.entries
        # Not `set(due) - entries.keys()`: Python would go through all entries for it.
        gone = {stripe for stripe in due if stripe not in entries}
        await asyncio.gather(
            *(
                self._drop(self._roster.agents[slot], [s for s in stripes if s in gone])
                for slot, stripes in at.items()
            )
        )

    async def sweep(self) -> None:
        """Takes apart what recursive deletes have detached, with pauses for everybody else."""
        for _ in range(SWEEPS_MAX):
            if not self._state.doomed:
                return
            await self._replica.execute(c.Sweep(SWEEP_ENTRIES))
            await asyncio.sleep(SWEEP_PAUSE_S)

    def _free_delay_s(self) -> float:
        delay_s = self._tuning.free_delay_s
        return min(delay_s, PRESSED_FREE_DELAY_S) if self._is_pressed() else delay_s

    def _is_pressed(self) -> bool:
        """Whether memory is short somewhere."""
        return any(
            pulse.bytes_used > PRESSURE_SHARE * pulse.bytes_max for pulse in self._pulses.values()
        )

    async def _drop(self, agent: AgentInfo, stripes: list[str]) -> None:
        try:
            await self._holders.drop(agent, stripes)
        except Unavailable as error:
            # It will have them reviewed when it is back.
            log.info("drop not delivered agent=%s error=%s", slot_name(agent.slot), error)

    # -- fencing ----------------------------------------------------------------

    async def fence(self) -> None:
        """Ends the unfinished stripes of writers whose shards nobody claims.

        Also of those whose reaped stripes are remembered, to be able to forget them. And
        ends the moves that have left shards behind: a stripe's next version decides.
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
        """Whether agents tell of all stripes that a client may come back with.

        An agent whose life has ended took with it what it kept for its clients: they have as
        long to go on with another agent as if it had lived.
        """
        since_ms = self._replica.elapsed_ms() - self._state.left_ms
        return since_ms >= 1000 * self._tuning.keep_s

    async def _end_moves(self) -> None:
        """Makes the version that unclaimed shards were stored for, without them."""
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
        """Whether it is to be counted from now on how long nobody goes on with what this
        writer, whose life is over, has left."""
        ledger = self._state.ledger
        fenced = ledger.fences.get(writer, 0) >= NO_MORE
        return not (fenced or writer in ledger.doubted_ms or self._lives(writer))

    def _fence_for(self, writer: Undecided) -> int | None:
        """The number under which the writer has nothing unfinished; None: not known yet.

        What agents report holds for all time: numbers only grow, and a stripe that is
        not held any more never will be: whoever held it kept it for as long as its client
        had to come back.
        """
        slot, _ = writer
        lives = self._lives(writer)
        elapsed_ms = self._replica.elapsed_ms()
        since_ms = self._state.ledger.doubted_ms.get(writer, elapsed_ms)
        if not lives and elapsed_ms - since_ms < 1000 * self._tuning.orphan_delay_s:
            return None  # a client may still bring its stripes to another agent
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
            return None  # the writer itself has not spoken
        return min(reported, default=NO_MORE)

    # -- packing ----------------------------------------------------------------

    async def demote(self) -> None:
        """Moves inline files that have lived a while into stripes."""
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

    async def repack(self) -> None:
        """Moves what lives in the sparsest stripes into full ones."""
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
        # One that cannot be read would keep all others from being repacked with it.
        for share, id_ in ledger.partly_dead.sparsest(state.health.is_readable):
            dense = kept <= DEAD_SHARE_MAX * ledger.live_bytes
            if share >= self._tuning.repack_live_share and dense:
                return
            entry = ledger.entries[id_]
            if id_ in ill and judge(entry.stripe, state.agents, damaged).spare < 0:
                continue
            yield entry
            kept -= entry.stripe.payload_bytes - entry.live_bytes
