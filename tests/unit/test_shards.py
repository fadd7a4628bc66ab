"""An agent's shards: what a repeat does, what is dropped, what is known to be damaged."""

import pytest

from diskless.agent.memory import Memory
from diskless.agent.shards import ShardStore
from diskless.checksum import BLOCK_BYTES, block_checksums, seed
from diskless.errors import CapacityExceeded, NotFound
from diskless.model import HeldShard
from tests.support import content, flipped

DATA = content(2 * BLOCK_BYTES + 9)
NAME = ("0.1.1", 2)


@pytest.fixture
def shards() -> ShardStore:
    made = ShardStore(memory=Memory(1 << 20), now_s=lambda: 0.0)
    made.incarnation = 7
    return made


def store(shards: ShardStore, data: bytes = DATA, *, version: int = 0, index: int = 2) -> int:
    sums = block_checksums(data, seed=seed("0.1.1", index))
    return shards.store("0.1.1", index, memoryview(data), sums, version=version)


def damage(shards: ShardStore) -> None:
    shards._stripes["0.1.1"][2].data = memoryview(flipped(DATA, 77))


def fetched(shards: ShardStore) -> bytes:
    return bytes(shards.fetch("0.1.1", 2, first_block=0, blocks=3)[0])


def test_storing_again_changes_nothing_but_the_version_that_it_is_for(shards: ShardStore) -> None:
    assert store(shards) == 7
    used = shards.bytes_used
    assert store(shards, version=3) == store(shards, version=1) == 7
    assert (shards.bytes_used, len(shards)) == (used, 1)
    assert shards.unconfirmed(age_s=0, limit=9) == [HeldShard(*NAME, 3)]


def test_a_damaged_shard_is_replaced_in_its_place(shards: ShardStore) -> None:
    store(shards)
    used = shards.bytes_used
    damage(shards)
    assert not shards.verify(*NAME)
    assert shards.damaged(limit=9) == [NAME]
    store(shards, version=1)
    assert fetched(shards) == DATA
    assert (shards.bytes_used, len(shards), shards.damaged(limit=9)) == (used, 1, [])


def test_a_shard_that_is_missed_is_noted_until_it_is_stored_or_nobody_wants_it(
    shards: ShardStore,
) -> None:
    assert not shards.verify(*NAME)
    assert shards.damaged(limit=9) == [NAME]
    assert shards.unconfirmed(age_s=99, limit=9) == [HeldShard(*NAME, 0)]
    shards.drop_superseded([HeldShard(*NAME, 0)])
    assert shards.damaged(limit=9) == []
    shards.verify(*NAME)
    store(shards)
    assert shards.damaged(limit=9) == []


def test_an_order_to_drop_spares_what_was_stored_for_a_later_version(shards: ShardStore) -> None:
    """A leader that was replaced may still be sending it."""
    store(shards, version=2)
    assert shards.drop_superseded([HeldShard(*NAME, 1)]) == 0
    assert fetched(shards) == DATA
    assert shards.drop_superseded([HeldShard(*NAME, 2)]) == 1
    with pytest.raises(NotFound):
        fetched(shards)
    assert shards.bytes_used == 0


def test_shards_of_one_stripe_are_reviewed_and_dropped_one_by_one(shards: ShardStore) -> None:
    store(shards)
    store(shards, index=4, version=1)
    shards.confirm(HeldShard(*NAME, 0))
    assert shards.unconfirmed(age_s=0, limit=9) == [HeldShard("0.1.1", 4, 1)]
    assert shards.drop_superseded([HeldShard("0.1.1", 4, 1)]) == 1
    assert len(shards) == 1
    shards.doubt_all()
    assert shards.unconfirmed(age_s=0, limit=9) == [HeldShard(*NAME, 0)]
    assert shards.drop(["0.1.1"]) == 1
    assert shards.bytes_used == 0


def test_replacing_a_damaged_shard_needs_no_room_of_its_own() -> None:
    tight = ShardStore(memory=Memory(8 * (len(DATA) + 2000) // 7), now_s=lambda: 0.0)
    tight.incarnation = 1
    store(tight)
    damage(tight)
    store(tight)
    with pytest.raises(CapacityExceeded):
        store(tight, index=3)


def test_new_damage_is_told_although_old_damage_cannot_be_healed(shards: ShardStore) -> None:
    """The shards of stripes that are lost stay damaged for good; others shall not wait."""
    for number in range(100):
        shards.verify(f"0.1.{number}", 0)
    told = shards.damaged(limit=10)
    assert len(told) == 10
    assert ("0.1.0", 0) in told, "what is lost stays known"
    shards.verify("0.1.777", 3)
    assert ("0.1.777", 3) in shards.damaged(limit=10)
    assert len(set(shards.damaged(limit=500))) == 101


def test_a_shard_that_is_stored_again_for_a_move_is_reviewed_again(shards: ShardStore) -> None:
    """The move may be refused: then it is left over, however well it was known before."""
    store(shards)
    shards.confirm(HeldShard(*NAME, 0))
    store(shards)
    assert shards.unconfirmed(age_s=0, limit=9) == []
    store(shards, version=4)
    assert shards.unconfirmed(age_s=0, limit=9) == [HeldShard(*NAME, 4)]


def test_all_shards_are_doubted_some_at_a_time() -> None:
    """Each is reviewed once, new ones in their own time, and what is gone not at all."""
    now_s = 0.0
    shards = ShardStore(memory=Memory(10 << 20), now_s=lambda: now_s)
    shards.incarnation = 1

    def keep(stripe: str) -> None:
        shards.store(stripe, 0, memoryview(DATA), block_checksums(DATA, seed=seed(stripe, 0)))

    for number in range(50):
        keep(f"0.1.{number}")
    for shard in shards.unconfirmed(age_s=0, limit=99):
        shards.confirm(shard)
    now_s = 10.0
    shards.doubt_all()
    keep("0.1.50")
    shards.drop(["0.1.7"])
    assert shards.unconfirmed(age_s=5, limit=99) == [], "too early"
    now_s = 16.0
    undecided = shards.unconfirmed(age_s=5, limit=1)
    seen: list[HeldShard] = []
    for _ in range(20):
        found = shards.unconfirmed(age_s=5, limit=8)
        assert len(found) <= 8
        seen += found
        for shard in found:
            shards.confirm(shard)
    assert undecided == [HeldShard("0.1.50", 0, 0)], "what came before is asked about first"
    assert sorted(shard.stripe for shard in seen) == sorted(
        f"0.1.{number}" for number in range(51) if number != 7
    )


def test_what_was_doubted_and_not_confirmed_is_asked_about_again() -> None:
    now_s = 0.0
    shards = ShardStore(memory=Memory(10 << 20), now_s=lambda: now_s)
    shards.incarnation = 1
    store(shards)
    shards.confirm(HeldShard(*NAME, 0))
    shards.doubt_all()
    assert shards.unconfirmed(age_s=0, limit=9) == [HeldShard(*NAME, 0)]
    assert shards.unconfirmed(age_s=5, limit=9) == []
    now_s = 5.0
    assert shards.unconfirmed(age_s=5, limit=9) == [HeldShard(*NAME, 0)]
