"""This agent's shards: its share of everybody's stripes, in memory.

Owns the bytes and the limit on them. Never decides what may be dropped: it is told.
A shard is verified when it comes; what goes out is verified by whoever gets it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from diskless.checksum import BLOCK_BYTES, CHECKSUM_BYTES, seed, verify_blocks
from diskless.config import format_bytes
from diskless.errors import CapacityExceeded, CorruptData, NotFound, Unavailable

RESERVE_SHARE = 1 / 32
"""The part of the memory that only repacking may use: a full agent full of half-dead
stripes could otherwise never make room."""
SHARD_OVERHEAD_BYTES = 512
"""What Python's objects for one shard take beside its bytes; counted as used."""


class _Shard:
    __slots__ = ("checksums", "data")

    def __init__(self, data: memoryview, checksums: bytes) -> None:
        self.data = data
        self.checksums = checksums

    @property
    def bytes_used(self) -> int:
        return len(self.data) + len(self.checksums) + SHARD_OVERHEAD_BYTES


class ShardStore:
    """The shards of one life of an agent."""

    def __init__(
        self,
        *,
        bytes_max: int,
        now_s: Callable[[], float],
        other_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`other_bytes` tells how much of `bytes_max` the agent's namespace takes."""
        self.bytes_max = bytes_max
        self.incarnation: int | None = None
        self._now_s = now_s
        self._other_bytes = other_bytes
        self._stripes: dict[str, dict[int, _Shard]] = {}
        self._unconfirmed_since: dict[str, float] = {}  # in order of arrival
        self._shard_bytes = 0
        self._shard_count = 0
        self._damage: list[_Damage] = []

    def __len__(self) -> int:
        return self._shard_count

    @property
    def bytes_used(self) -> int:
        return self._shard_bytes + self._other_bytes()

    def store(
        self,
        stripe: str,
        index: int,
        data: memoryview,
        checksums: bytes,
        *,
        from_reserve: bool = False,
    ) -> int:
        """Keeps a shard; returns the incarnation that has it. A repeat changes nothing.

        Raises CapacityExceeded, CorruptData, and Unavailable before the agent has
        joined the cluster, because then its shards would count for no incarnation.
        """
        if self.incarnation is None:
            raise Unavailable("this agent has not joined the cluster yet")
        if not verify_blocks(data, checksums, seed=seed(stripe, index)):
            raise CorruptData(f"shard {index} of stripe {stripe} was damaged on its way here")
        kept = self._stripes.get(stripe)
        if kept is not None and index in kept:
            return self.incarnation
        shard = _Shard(_own(data), checksums)
        reserve = 0 if from_reserve else int(RESERVE_SHARE * self.bytes_max)
        if self.bytes_used + shard.bytes_used > self.bytes_max - reserve:
            raise CapacityExceeded(
                f"no room for {format_bytes(len(data))}: "
                f"{format_bytes(self.bytes_used)} of {format_bytes(self.bytes_max)} are in use"
            )
        self._stripes.setdefault(stripe, {})[index] = shard
        self._unconfirmed_since.setdefault(stripe, self._now_s())
        self._shard_bytes += shard.bytes_used
        self._shard_count += 1
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

    def drop(self, stripes: Iterable[str]) -> int:
        """Forgets all shards of these stripes; returns how many there were."""
        before = self._shard_count
        for stripe in stripes:
            self._unconfirmed_since.pop(stripe, None)
            for shard in self._stripes.pop(stripe, {}).values():
                self._shard_bytes -= shard.bytes_used
                self._shard_count -= 1
        return before - self._shard_count

    # What chaos does to shards, on purpose.

    def damage(self, count: int, *, seed: int) -> int:
        """Flips a byte in up to `count` sound shards; returns in how many."""
        hurt = {id(damage.shard) for damage in self._damage}
        sound = [
            (stripe, index, shard)
            for stripe, shards in sorted(self._stripes.items())
            for index, shard in sorted(shards.items())
            if id(shard) not in hurt and len(shard.data)
        ]
        random = Random(seed)
        chosen = random.sample(sound, min(count, len(sound)))
        for stripe, index, shard in chosen:
            damage = _Damage(stripe, index, shard, random.randrange(len(shard.data)))
            damage.flip()
            self._damage.append(damage)
        return len(chosen)

    def damaged(self) -> int:
        """How many damaged shards are still kept: a shard that was stored anew is sound."""
        self._damage = [damage for damage in self._damage if self._keeps(damage)]
        return len(self._damage)

    def mend(self) -> int:
        """Flips back what is left of the damage; returns in how many shards."""
        count = self.damaged()
        for damage in self._damage:
            damage.flip()
        self._damage = []
        return count

    def _keeps(self, damage: "_Damage") -> bool:
        return self._stripes.get(damage.stripe, {}).get(damage.index) is damage.shard

    def unconfirmed(self, *, age_s: float, limit: int) -> list[str]:
        """Stripes that came at least `age_s` ago and that no review has confirmed."""
        latest = self._now_s() - age_s
        found: list[str] = []
        for stripe, since in self._unconfirmed_since.items():
            if since > latest or len(found) >= limit:
                break
            found.append(stripe)
        return found

    def confirm(self, stripe: str) -> None:
        """Notes that the namespace knows this stripe: it will say when to drop it."""
        self._unconfirmed_since.pop(stripe, None)

    def doubt_all(self) -> None:
        """Has everything reviewed again: this agent may have missed orders to drop."""
        now_s = self._now_s()
        for stripe in self._stripes:
            self._unconfirmed_since.setdefault(stripe, now_s)


@dataclass(frozen=True, slots=True)
class _Damage:
    """A byte of a shard that was flipped. Flipping it again makes it good."""

    stripe: str
    index: int
    shard: _Shard
    at: int

    def flip(self) -> None:
        data = bytearray(self.shard.data)
        data[self.at] ^= 0xFF
        self.shard.data = memoryview(bytes(data))


def _own(data: memoryview) -> memoryview:
    """`data`, copied unless it is nearly all of the buffer that it would keep alive."""
    whole = data.obj
    if isinstance(whole, bytes) and 10 * len(data) >= 9 * len(whole):
        return data
    return memoryview(bytes(data))
