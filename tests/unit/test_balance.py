"""Moving shards to where there is more room: where they go, that it ends, and where."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as altered
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diskless.balance import AIM, START, STRETCH_STEPS, WORTH, Load, Scales, Walk
from diskless.model import AgentInfo, Place, Stripe
from diskless.namespace.health import Health, hosts_to_lose

M, K = 4, 2
ROOM = 1_000_000
MOVES_MAX = 100_000


def load(slot: int, used: int = 0, *, host: str | None = None, room: int = ROOM) -> Load:
    return Load(slot=slot, host=host or f"host-{slot}", bytes_max=room, bytes_used=used)


def stripe_on(slots: Sequence[int], *, number: int, payload: int, m: int) -> Stripe:
    places = tuple(Place(slot, 1) for slot in slots)
    return Stripe(f"0.1.{number}", m, len(slots) - m, payload, places)


@dataclass
class World:
    """Agents with what they hold beside shards, and stripes on them; moves are made at once."""

    empty: Mapping[int, Load]
    stripes: dict[str, Stripe]

    def __post_init__(self) -> None:
        agents = {
            slot: AgentInfo(slot, 1, "b", "a", "g", "s", one.host, "n", 1)
            for slot, one in self.empty.items()
        }
        self.health = Health(agents)
        self.groups = {
            id_: self.health.enter(stripe, number)
            for number, (id_, stripe) in enumerate(self.stripes.items())
        }
        self.numbers = {id_: number for number, id_ in enumerate(self.stripes)}
        self.moves = 0
        self.bytes_moved = 0

    def scales(self) -> Scales:
        placed = self.health.bytes_placed
        return Scales(
            altered(one, bytes_used=one.bytes_used + placed[slot])
            for slot, one in self.empty.items()
        )

    def potential(self) -> float:
        """What every move must lessen; else it might go on forever."""
        scales = self.scales()
        return sum(scales.fill(s) ** 2 * one.bytes_max for s, one in self.empty.items())

    def move(self, id_: str, index: int, taker: int) -> None:
        before = self.stripes[id_]
        places = list(before.places)
        places[index] = Place(taker, 1)
        after = self.stripes[id_] = replace(before, places=tuple(places))
        self.health.leave(self.groups[id_], before, self.numbers[id_])
        self.groups[id_] = self.health.enter(after, self.numbers[id_])
        self.moves += 1
        self.bytes_moved += after.shard_bytes
        assert len({place.slot for place in places}) == len(places)
        assert self.hosts_to_lose(after) >= self.hosts_to_lose(before)
        assert max(self.crowds(after).values()) <= max(self.crowds(before).values())

    def crowds(self, stripe: Stripe) -> Counter[str]:
        return Counter(self.empty[place.slot].host for place in stripe.places)

    def hosts_to_lose(self, stripe: Stripe) -> int:
        return hosts_to_lose(list(self.crowds(stripe).elements()), stripe.data_shards)

    def balance(self) -> None:
        """As the leader does it, with waves of one stripe."""
        while self.walk():
            assert self.moves < MOVES_MAX

    def walk(self) -> bool:
        moved = False
        walk = Walk(self.health, self.scales())
        for id_ in walk:
            if walk.scales.is_even:
                return False
            if id_ is None:
                continue
            stripe = self.stripes[id_]
            found = walk.scales.choose([p.slot for p in stripe.places], walk.size_of(stripe))
            if found is None:
                continue
            index, taker = found
            before, giver = self.potential(), stripe.places[index].slot
            assert self.empty[taker].takes
            self.move(id_, index, taker)
            walk.scales.move(giver, taker, stripe.shard_bytes)
            assert self.potential() < before
            assert walk.scales.fill(taker) <= 1
            moved = True
        return moved

    def could_move(self) -> list[str]:
        """Stripes of which a shard should still move: none is passed over in the end."""
        scales = self.scales()
        return [
            id_
            for id_, stripe in self.stripes.items()
            if scales.choose([p.slot for p in stripe.places], stripe.shard_bytes) is not None
        ]


def world_of(
    loads: Iterable[Load],
    places: Iterable[Sequence[int]],
    *,
    payload: int = 4000,
    m: int = M,
) -> World:
    stripes = [
        stripe_on(slots, number=number, payload=payload, m=m)
        for number, slots in enumerate(places, start=1)
    ]
    return World({one.slot: one for one in loads}, {stripe.id: stripe for stripe in stripes})


# Growing


def test_a_cluster_that_grew_ends_even_with_no_more_moves_than_it_needs() -> None:
    grown = world_of(map(load, range(8)), [range(6)] * 800)
    assert grown.scales().is_off()
    needed = grown.scales().bytes_left
    grown.balance()
    assert grown.scales().is_even
    assert needed <= grown.bytes_moved <= needed * 1.1
    assert not grown.scales().is_off()


def test_one_more_among_many_is_filled_too() -> None:
    """The fullest is hardly above the mean then, and the new one far below."""
    places = [[(n + i) % 20 for i in range(6)] for n in range(2000)]
    grown = world_of(map(load, range(21)), places)
    assert grown.scales().fullest < (1 + START) * grown.scales().mean
    grown.balance()
    assert grown.scales().is_even


def test_larger_agents_take_more() -> None:
    loads = [*map(load, range(6)), load(6, room=3 * ROOM), load(7, room=ROOM)]
    places = [[(n + i) % 6 for i in range(3)] for n in range(1500)]
    grown = world_of(loads, places, payload=1000, m=1)
    grown.balance()
    assert grown.scales().is_even
    assert grown.health.bytes_placed[6] > 2 * grown.health.bytes_placed[7]


def test_what_cannot_move_counts() -> None:
    """Voters have the namespace: agents without one get more shards."""
    loads = [load(slot, 100_000 if slot < 5 else 0) for slot in range(12)]
    places = [[(n + i) % 12 for i in range(6)] for n in range(1200)]
    uneven = world_of(loads, places)
    uneven.balance()
    assert uneven.scales().is_even
    assert uneven.health.bytes_placed[0] < uneven.health.bytes_placed[11]


def test_hosts_forbid_what_would_bring_shards_together() -> None:
    """Three hosts and a shard on each: the only agent of a host keeps all of its shards."""
    loads = [load(0, host="a"), *(load(n, host="bc"[n % 2]) for n in range(1, 5))]
    world = world_of(loads, [(0, 1, 2)] * 300, m=2)
    world.balance()
    assert world.moves > 0
    assert not world.could_move()
    assert world.health.shards_placed == {0: 300, 1: 150, 2: 150, 3: 150, 4: 150}


def test_with_one_agent_for_each_shard_nothing_can_move() -> None:
    world = world_of([load(n, 200_000 * (n < 2)) for n in range(6)], [range(6)] * 300)
    assert world.scales().is_off()
    world.balance()
    assert (world.moves, world.could_move()) == (0, [])


def test_what_goes_through_another_agent_gets_there() -> None:
    """All stripes on 0 have a shard on the empty 3 already, but not those on 1 and 2."""
    places = [(0, 3)] * 300 + [(1, 2)] * 400
    world = world_of([load(n, 150_000 * (n < 1)) for n in range(4)], places, payload=1000, m=1)
    world.balance()
    assert world.scales().is_even


# When, and when not


def test_nothing_moves_within_ten_percent_and_then_it_goes_on_to_five() -> None:
    near = Scales([load(0, 545_000), load(1, 500_000), load(2, 455_000)])
    far = Scales([load(0, 560_000), load(1, 500_000), load(2, 440_000)])
    assert not near.is_off()
    assert far.is_off()
    assert not near.is_even
    assert near.band(AIM) == AIM * near.mean


def test_little_is_not_worth_a_move() -> None:
    """Of nearly empty agents one has ten times as much as the other, and room for all."""
    few = world_of([load(0), load(1), load(2)], [(0, 1)] * 4, payload=1000, m=1)
    assert few.scales().deviation < WORTH
    assert not few.scales().is_off()
    few.balance()
    assert few.moves == 0


def test_what_could_not_be_better_begins_again_only_when_it_is_worse() -> None:
    loads = [load(0, 400_000), *(load(n, 200_000) for n in range(1, 6))]
    reached = Scales(loads)
    assert reached.is_off()
    assert not reached.is_off(reached=reached.deviation)
    worse = Scales([load(0, 420_000), *loads[1:]])
    assert worse.is_off(reached=reached.deviation)


def test_an_agent_that_is_slow_or_full_takes_nothing() -> None:
    loads = [*(load(n) for n in range(6)), altered(load(6), takes=False), load(7, room=900)]
    world = world_of(loads, [range(6)] * 300)
    world.balance()
    assert world.moves == 0


def test_nothing_goes_where_there_is_no_room_though_another_has_less() -> None:
    """Repair may use the reserve, and so fill an agent beyond its end."""
    assert Scales([load(0, 1_200_000), load(1, 999_500)]).choose([0], 1000) is None
    assert Scales([load(0, 1_200_000), load(1, 998_500)]).choose([0], 1000) == (0, 1)


def test_a_stripe_on_an_agent_that_is_not_weighed_is_left_alone() -> None:
    assert Scales([load(0, 900_000), load(2)]).choose([0, 1], 10) is None
    assert Scales([load(0, 900_000), load(1), load(2)]).choose([0, 1], 10) == (0, 2)


# Always


@st.composite
def worlds(draw: st.DrawFn) -> World:
    agents = draw(st.integers(2, 9))
    hosts = draw(st.lists(st.integers(0, 4), min_size=agents, max_size=agents))
    used = draw(st.lists(st.integers(0, 300_000), min_size=agents, max_size=agents))
    rooms = draw(
        st.lists(st.sampled_from([ROOM, ROOM, 3 * ROOM]), min_size=agents, max_size=agents)
    )
    takes = draw(st.sets(st.integers(0, agents - 1)))
    loads = [
        altered(
            load(slot, used[slot], host=f"host-{hosts[slot]}", room=rooms[slot]),
            takes=slot not in takes,
        )
        for slot in range(agents)
    ]
    stripes: dict[str, Stripe] = {}
    for kind in range(draw(st.integers(1, 5))):
        slots = draw(st.permutations(range(agents)))[: draw(st.integers(1, agents))]
        m = draw(st.integers(1, len(slots)))
        payload = draw(st.integers(1, 40_000))
        for number in range(draw(st.integers(0, 40))):
            stripe = stripe_on(slots, number=100 * kind + number, payload=payload, m=m)
            stripes[stripe.id] = stripe
    return World({one.slot: one for one in loads}, stripes)


@given(worlds())
def test_it_ends_where_no_move_helps_and_never_lays_shards_wrongly(world: World) -> None:
    """`World.move` looks at each: one shard on an agent, and hosts no worse off."""
    world.balance()
    assert world.scales().is_even or not world.could_move()
    moves = world.moves
    world.balance()
    assert world.moves == moves


@given(st.integers(1, 4), st.integers(0, 2), st.integers(1, 6), st.data())
def test_with_a_host_for_each_agent_it_ends_within_ten_percent(
    m: int, k: int, more: int, data: st.DataObject
) -> None:
    """Whatever was placed where: on any agents of which there are more than shards."""
    agents = m + k + more
    where = st.permutations(range(agents)).map(lambda slots: slots[: m + k])
    kinds = data.draw(st.lists(where, min_size=1, max_size=4))
    world = world_of(
        map(load, range(agents)), [slots for slots in kinds for _ in range(50)], payload=1200, m=m
    )
    world.balance()
    scales = world.scales()
    assert scales.deviation <= max(START * scales.mean, WORTH)


def test_every_set_of_new_agents_is_used() -> None:
    for new in combinations(range(6), 2):
        old = [slot for slot in range(6) if slot not in new]
        world = world_of(map(load, range(6)), [old[:3], old[1:]] * 200, m=2)
        world.balance()
        assert world.scales().is_even


def test_a_walk_pauses_also_where_it_finds_nothing() -> None:
    """A host for each shard, and no agent that is free: each group is looked at in vain."""
    places = list(combinations(range(12), 6))
    loads = [altered(load(n, 500_000 * (n == 0)), takes=False) for n in range(12)]
    world = world_of(loads, places)
    steps = list(Walk(world.health, world.scales()))
    assert set(steps) == {None}
    assert len(steps) >= len(places) * 6 // STRETCH_STEPS
