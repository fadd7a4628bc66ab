"""This agent's shards, in memory.

Owns the bytes, and charges them to the agent's account. Never decides what may be dropped. A shard
is verified when it is stored; what is read is verified by the receiver. Shards that were found
damaged are remembered until they are replaced or dropped.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from random import Random

from diskless.agent.memory import Memory, Use
from diskless.checksum import BLOCK_BYTES, CHECKSUM_BYTES, seed, verify_blocks
from diskless.errors import CorruptData, NotFound, Unavailable
from diskless.model import HeldShard, ShardName

SHARD_OVERHEAD_BYTES = 960
"""Bytes of the Python objects for one shard, measured with 50,000 of them. They count as used."""

DAMAGED_MAX = 4096
"""Damaged shards that are remembered. Others will be found again."""


class _Shard:
    __slots__ = ("checksums", "data", "version")

    def __init__(self, data: memoryview, checksums: bytes, version: int) -> None:
        self.data = data
        self.checksums = checksums
        self.version = version

    @property
    def bytes_used(self) -> int:
        return len(self.data) + len(self.checksums) + SHARD_OVERHEAD_BYTES


class ShardStore:
    """The shards of one life of an agent."""

    def __init__(
        self,
        *,
        memory: Memory,
        now_s: Callable[[], float],
        on_drop: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """`on_drop` is called with stripes that nobody will read any more."""
        self._on_drop = on_drop
        self.incarnation: int | None = None
        self.closed = False
        """It stores nothing more: this agent is about to end, and empty."""
        self.bytes_used = 0
        """By all shards, with what is counted for keeping them."""
        self._memory = memory
        self._now_s = now_s
        self._stripes: dict[str, dict[int, _Shard]] = {}
        self._unconfirmed_since: dict[tuple[str, int], float] = {}  # in order of arrival
        self._doubted: list[str] = []  # stripes whose shards are to be reviewed once more
        self._doubted_s = 0.0
        self._damaged: dict[tuple[str, int], None] = {}
        self._shard_count = 0
        self._flips: list[_Flip] = []

    def __len__(self) -> int:
        return self._shard_count

    def store(
        self,
        stripe: str,
        index: int,
        data: memoryview,
        checksums: bytes,
        *,
        version: int = 0,
        from_reserve: bool = False,
    ) -> int:
        """Stores a shard; returns the incarnation that holds it.

        A repeat only notes the later `version` of its stripe, unless the stored shard is damaged:
        then it is replaced.

        Raises CapacityExceeded, CorruptData, and Unavailable before the agent has
        joined the cluster, because then its shards would count for no incarnation, and
        when it is about to end.
        """
        if self.incarnation is None:
            raise Unavailable("this agent has not joined the cluster yet")
        if self.closed:
            raise Unavailable("this agent is about to end")
        if not verify_blocks(data, checksums, seed=seed(stripe, index)):
            raise CorruptData(f"shard {index} of stripe {stripe} was damaged on its way here")
        kept = self._stripes.get(stripe, {}).get(index)
        if kept is not None and self.verify(stripe, index):
            if version > kept.version:
                kept.version = version
                # The move that it belongs to may be refused.
                self._unconfirmed_since.setdefault((stripe, index), self._now_s())
            return self.incarnation
        shard = _Shard(own(data), checksums, version)
        growth = shard.bytes_used - (kept.bytes_used if kept is not None else 0)
        self._memory.check(growth, Use.REPAIR if from_reserve else Use.DATA, "a shard")
        self._stripes.setdefault(stripe, {})[index] = shard
        self._unconfirmed_since.setdefault((stripe, index), self._now_s())
        self._damaged.pop((stripe, index), None)
        self._count(growth)
        self._shard_count += kept is None
        return self.incarnation

    def fetch(
        self, stripe: str, index: int, *, first_block: int, blocks: int
    ) -> tuple[memoryview, bytes]:
        """Whole blocks of a shard and their checksums, unverified. Raises NotFound."""
        shard = self._stripes.get(stripe, {}).get(index)
        if shard is None:
            raise NotFound(f"no shard {index} of stripe {stripe} here")
        end = first_block + blocks
        data = shard.data[first_block * BLOCK_BYTES : end * BLOCK_BYTES]
        return data, shard.checksums[first_block * CHECKSUM_BYTES : end * CHECKSUM_BYTES]

    def drop(self, stripes: Collection[str]) -> int:
        """Forgets all shards of these stripes; returns how many there were."""
        before = self._shard_count
        if self._on_drop is not None:
            self._on_drop(stripes)
        for stripe in stripes:
            for index in list(self._stripes.get(stripe, ())):
                self._drop(stripe, index)
        return before - self._shard_count

    def drop_superseded(self, shards: Iterable[HeldShard]) -> int:
        """Forgets shards of moved stripes, unless they were stored for a later version
        than the one given: then the caller does not know of a later move."""
        before = self._shard_count
        for name in shards:
            shard = self._stripes.get(name.stripe, {}).get(name.index)
            if shard is None:
                self._damaged.pop((name.stripe, name.index), None)
            elif shard.version <= name.version:
                self._drop(name.stripe, name.index)
        return before - self._shard_count

    def _drop(self, stripe: str, index: int) -> None:
        kept = self._stripes[stripe]
        shard = kept.pop(index)
        if not kept:
            del self._stripes[stripe]
        self._unconfirmed_since.pop((stripe, index), None)
        self._damaged.pop((stripe, index), None)
        self._count(-shard.bytes_used)
        self._shard_count -= 1

    def _count(self, growth: int) -> None:
        self.bytes_used += growth
        self._memory.charge("shards", growth)

    # -- review -----------------------------------------------------------------

    def unconfirmed(self, *, age_s: float, limit: int) -> list[HeldShard]:
        """Shards that were stored at least `age_s` ago and not confirmed by a review since; and
        missing ones, in case nobody expects them here any more."""
        now_s = self._now_s()
        found = [
            HeldShard(stripe, index, 0)
            for stripe, index in islice(self._damaged, limit)
            if not self.has(stripe, index)
        ]
        for (stripe, index), since in self._unconfirmed_since.items():
            if since > now_s - age_s or len(found) >= limit:
                break
            found.append(HeldShard(stripe, index, self._stripes[stripe][index].version))
        while self._doubted and self._doubted_s <= now_s - age_s and len(found) < limit:
            stripe = self._doubted.pop()
            for index, shard in self._stripes.get(stripe, {}).items():
                if (stripe, index) not in self._unconfirmed_since:
                    # It is asked about again until it is confirmed.
                    self._unconfirmed_since[stripe, index] = now_s
                    found.append(HeldShard(stripe, index, shard.version))
        return found

    def confirm(self, shard: HeldShard) -> None:
        """Notes that the namespace knows this shard, and will say when to drop it."""
        self._unconfirmed_since.pop((shard.stripe, shard.index), None)

    def doubt_all(self) -> None:
        """Has everything reviewed again: this agent may have missed drop requests.

        It only notes the names; `unconfirmed` returns some at a time.
        """
        self._doubted, self._doubted_s = list(self._stripes), self._now_s()

    # -- damage -----------------------------------------------------------------

    def stripes(self) -> list[str]:
        """The stripes that have shards here."""
        return list(self._stripes)

    def sizes(self, stripe: str) -> dict[int, int]:
        """The sizes of a stripe's shards here, by index."""
        return {index: len(shard.data) for index, shard in self._stripes.get(stripe, {}).items()}

    def has(self, stripe: str, index: int) -> bool:
        return index in self._stripes.get(stripe, ())

    def verify(self, stripe: str, index: int) -> bool:
        """Whether a shard is here and intact; if not, it is noted as damaged."""
        shard = self._stripes.get(stripe, {}).get(index)
        good = shard is not None and verify_blocks(
            shard.data, shard.checksums, seed=seed(stripe, index)
        )
        if good:
            self._damaged.pop((stripe, index), None)
        elif len(self._damaged) < DAMAGED_MAX:
            self._damaged[stripe, index] = None
        return good

    def miss(self, shards: Iterable[ShardName]) -> int:
        """Notes those of these that are not here as damaged; how many were not known to be."""
        missed = [n for n in shards if n not in self._damaged and not self.has(*n)]
        for name in missed[: max(DAMAGED_MAX - len(self._damaged), 0)]:
            self._damaged[name] = None
        return len(missed)

    def damaged(self, *, limit: int) -> list[tuple[str, int]]:
        """Shards that are corrupt, or were asked for and are not here.

        If there are too many, the oldest and the newest: those of a lost stripe stay forever, and
        must neither be forgotten nor prevent the repair of others.
        """
        names = list(self._damaged)
        if len(names) > limit:
            names[limit // 2 : len(names) - (limit - limit // 2)] = []
        return names

    # -- chaos ------------------------------------------------------------------

    def flip_bytes(self, count: int, *, random_seed: int) -> int:
        """Flips a byte in up to `count` shards that have none flipped; returns in how many."""
        flipped = {id(flip.shard) for flip in self._flips}
        sound = [
            (stripe, index, shard)
            for stripe, shards in sorted(self._stripes.items())
            for index, shard in sorted(shards.items())
            if id(shard) not in flipped and len(shard.data)
        ]
        random = Random(random_seed)
        chosen = random.sample(sound, min(count, len(sound)))
        for stripe, index, shard in chosen:
            flip = _Flip(stripe, index, shard, random.randrange(len(shard.data)))
            flip.do()
            self._flips.append(flip)
        return len(chosen)

    def flips_left(self) -> int:
        """How many of the shards with a flipped byte are still here, and not stored again."""
        self._flips = [
            flip
            for flip in self._flips
            if self._stripes.get(flip.stripe, {}).get(flip.index) is flip.shard
        ]
        return len(self._flips)

    def flip_back(self) -> int:
        """Flips the remaining ones back; returns in how many shards."""
        count = self.flips_left()
        for flip in self._flips:
            flip.do()
            self.verify(flip.stripe, flip.index)  # It may be known as damaged.
        self._flips = []
        return count


@dataclass(frozen=True, slots=True)
class _Flip:
    """A byte of a shard that chaos flipped. Flipping it again restores it."""

    stripe: str
    index: int
    shard: _Shard
    at: int

    def do(self) -> None:
        data = bytearray(self.shard.data)
        data[self.at] ^= 0xFF
        self.shard.data = memoryview(bytes(data))


def own(data: memoryview) -> memoryview:
    """`data`, copied unless it is nearly all of the buffer that it would keep alive."""
    whole = data.obj
    if isinstance(whole, bytes) and 10 * len(data) >= 9 * len(whole):
        return data
    return memoryview(bytes(data))
