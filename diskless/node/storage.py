"""An agent's part in storing bytes: its shards, and what writes, reads and makes them again."""

from collections.abc import Callable

from diskless.agent.cold import ColdReader
from diskless.agent.copies import Copies
from diskless.agent.hits import Hits
from diskless.agent.holders import Holders
from diskless.agent.memory import Memory
from diskless.agent.packer import Packer
from diskless.agent.ports import CopyCounts, Hold
from diskless.agent.reader import Reader
from diskless.agent.rebuilder import Rebuilder
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.agent.scrubber import Scrubber
from diskless.agent.shards import ShardStore
from diskless.agent.sweeper import Sweeper
from diskless.agent.tiers import Tiers
from diskless.agent.uploader import Uploader
from diskless.agent.uploads import Uploads
from diskless.agent.writer import Writer
from diskless.config import ClusterSettings
from diskless.namespace import queries as q
from diskless.rpc.peers import Peers


class Storage:
    def __init__(
        self,
        *,
        slot: int,
        settings: ClusterSettings,
        memory: Memory,
        roster: Roster,
        peers: Peers,
        namespace: Router,
        tiers: Tiers,
        now_s: Callable[[], float],
    ) -> None:
        self._slot = slot
        self._settings = settings
        self._memory = memory
        self._roster = roster
        self._peers = peers
        self._namespace = namespace
        self._now_s = now_s
        self.tiers = tiers
        self.copies: Copies | None = None
        if settings.cache_bytes:
            self.copies = Copies(slot=slot, memory=memory, bytes_max=settings.cache_bytes)
        self.shards = ShardStore(
            memory=memory,
            now_s=now_s,
            on_drop=self.copies.drop if self.copies is not None else None,
        )
        self.holders = Holders(slot=slot, shards=self.shards, peers=peers)
        self._begin_reading()
        self._begin_writing()
        self._keep_in_order()

    def _begin_reading(self) -> None:
        tuning, ask = self._settings.tuning, self._namespace.query
        self.hits = Hits(self._now_s)
        self.cold = ColdReader(
            tiers=self.tiers,
            locate=lambda id_, at: ask(q.TierParts(id_, at)),
            memory=self._memory,
            roster=self._roster,
            peers=self._peers,
        )
        self.reader = Reader(
            roster=self._roster,
            holders=self.holders,
            locate=lambda stripes: ask(q.Locate(tuple(stripes))),
            behind=lambda extent: ask(q.Behind(extent)),
            hedge_delay_s=tuning.hedge_delay_s,
            patience_s=2 * tuning.failure_timeout_s,
            lost_after_s=tuning.repair_delay_s,
            memory=self._memory,
            cold=self.cold,
            copies=self.copies,
        )
        self.uploader = Uploader(reader=self.reader, tiers=self.tiers, memory=self._memory)

    def _begin_writing(self) -> None:
        tuning = self._settings.tuning
        self.writer = Writer(
            settings=self._settings,
            roster=self._roster,
            shards=self.shards,
            holders=self.holders,
            memory=self._memory,
            copies=self.copies,
        )
        self.packer = Packer(
            tuning=tuning,
            roster=self._roster,
            writer=self.writer,
            namespace=self._namespace,
            read_stripe=self.reader.read_stripe,
        )
        self.uploads = Uploads(
            writer=self.writer,
            tuning=tuning,
            now_s=self._now_s,
            memory=self._memory,
            relief=lambda: self._roster.relief,
        )

    def _keep_in_order(self) -> None:
        """What rebuilds, finds and drops shards."""
        tuning = self._settings.tuning
        self.rebuilder = Rebuilder(
            roster=self._roster,
            holders=self.holders,
            reader=self.reader,
            memory=self._memory,
            stripe_bytes=tuning.stripe_bytes,
        )
        self.sweeper = Sweeper(
            slot=self._slot,
            shards=self.shards,
            uploads=self.uploads,
            namespace=self._namespace,
            tuning=tuning,
        )
        self.scrubber = Scrubber(
            shards=self.shards,
            bytes_per_s=tuning.scrub_bytes_per_s,
            pace=lambda: self._roster.upkeep_pace,
        )

    def close(self) -> None:
        self.uploads.close_all()
        self.reader.close()
        self.cold.close()

    def copy_counts(self) -> CopyCounts:
        return self.copies.counts() if self.copies is not None else CopyCounts()

    def holds(self) -> list[Hold]:
        """What this agent has stored for itself and its clients, and not committed yet."""
        if self.shards.incarnation is None:
            return []
        mine = Hold(self._slot, self.shards.incarnation, self.writer.held_from)
        return [mine, *self.uploads.holds()]
