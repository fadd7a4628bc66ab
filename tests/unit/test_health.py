"""Health is kept up to date: whatever happens, it is what a count from scratch says."""

import random
from collections.abc import Iterator
from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.model import AgentInfo, Extent, Place, Stripe
from diskless.namespace import commands as c
from diskless.namespace import snapshot as s
from diskless.namespace.health import hosts_to_lose
from diskless.namespace.state import NamespaceState
from diskless.placement import place
from tests.unit.recount import (
    check_plan,
    check_sparse,
    cluster_of,
    counted,
    hosts_left,
    recount,
)
from tests.unit.test_namespace_world import agent_up

HOSTS = {
    "a host each": lambda slot: f"host-{slot}",
    "two agents on a host": lambda slot: f"host-{slot // 2}",
    "one host": lambda slot: "host",
}


class Store:
    """A state with agents, and stripes as a writer places them."""

    def __init__(self, agents: int, *, m: int, k: int, hosts: str = "a host each") -> None:
        self.m, self.k = m, k
        self.host = HOSTS[hosts]
        self.state = NamespaceState()
        self.lives = [1] * agents
        self.stripes = 0
        for slot in range(agents):
            self.start(slot)
        self.session = self.state.apply(c.OpenSession(), now_ms=1, elapsed_ms=1)[0].number

    def apply(self, command: c.Command) -> None:
        (result,) = self.state.apply(command, now_ms=1000, elapsed_ms=1000)
        assert isinstance(result, c.Done), result

    def start(self, slot: int) -> None:
        self.apply(agent_up(slot, f"life {self.lives[slot]}", host=self.host(slot)))

    def restart(self, slot: int) -> None:
        self.lives[slot] += 1
        self.start(slot)

    def stop(self, slot: int) -> None:
        self.apply(c.AgentDown(slot, self.lives[slot]))

    def write(self, *slots: int, m: int | None = None, files: int = 2) -> str:
        """A stripe with some files; one of them may go later, or all."""
        m = len(slots) - self.k if m is None else m
        self.stripes += 1
        places = tuple(Place(slot, self.lives[slot]) for slot in slots)
        stripe = Stripe(f"0.1.{self.stripes}", m, len(slots) - m, 10 * files, places)
        new = tuple(
            c.NewFile(f"/{stripe.id}/{n}", 10, n, None, (Extent(stripe.id, 10 * n, 10),))
            for n in range(files)
        )
        put = c.Put(self.session, self.next(), False, new)
        self.apply(c.Commit((stripe,), (put,)))
        return stripe.id

    def write_in_rotation(self, count: int) -> list[str]:
        agents = list(self.state.agents.values())
        width = self.m + self.k
        return [self.write(*place(agents, count=width, turn=turn)) for turn in range(count)]

    def delete(self, path: str) -> None:
        self.apply(c.Delete(self.session, self.next(), path, True))

    def next(self) -> int:
        self._sequence = getattr(self, "_sequence", 0) + 1
        return self._sequence

    def check(self, damaged: frozenset[tuple[str, int]] = frozenset(), **more: object) -> None:
        assert counted(self.state, damaged) == recount(self.state, damaged)
        cluster = cluster_of(
            self.state.agents, data_shards=self.m, parity_shards=self.k, damaged=damaged, **more
        )
        check_plan(self.state.ledger, cluster)


def erasures(count: int) -> Iterator[tuple[int, ...]]:
    return (lost for size in range(count + 1) for lost in combinations(range(count), size))


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize(("m", "k", "agents"), [(2, 1, 4), (4, 2, 7), (1, 2, 5), (3, 3, 6)])
def test_every_erasure_set_is_counted_and_planned_as_from_scratch(
    m: int, k: int, agents: int, hosts: str
) -> None:
    """Each is reached from the one before by whatever agents that takes, and each of those
    that are down is away, given up, or back with an empty memory."""
    store = Store(agents, m=m, k=k, hosts=hosts)
    store.write_in_rotation(2 * agents)
    store.write(*range(1 + k), m=1)  # a narrow one
    down: set[int] = set()
    for lost in erasures(agents):
        for slot in down - {*lost}:
            store.start(slot)
        for slot in {*lost} - down:
            store.stop(slot)
        down = {*lost}
        store.check()
        store.check(gone=frozenset(lost))
    for slot in range(agents):
        store.restart(slot)
        store.check()


@pytest.mark.parametrize("hosts", HOSTS)
def test_every_set_of_damaged_shards_is_laid_over_the_count(hosts: str) -> None:
    store = Store(5, m=2, k=1, hosts=hosts)
    first, second = store.write(0, 1, 2), store.write(1, 2, 3)
    store.write(0, 1, 2)
    shards = [(stripe, index) for stripe in (first, second) for index in range(3)]
    for down in ((), (1,), (1, 4), (0, 3)):
        for slot in down:
            store.stop(slot)
        for chosen in erasures(len(shards)):
            store.check(frozenset(shards[n] for n in chosen))
        for slot in down:
            store.start(slot)


def test_damage_of_a_stripe_that_is_freed_or_unknown_counts_for_nothing() -> None:
    store = Store(4, m=2, k=1)
    gone = store.write(0, 1, 2)
    store.write(1, 2, 3)
    store.delete(f"/{gone}")
    store.check(frozenset({(gone, 0), ("3.1.99", 1)}))


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 2**32))
def test_after_any_commands_health_is_what_a_count_from_scratch_says(seed: int) -> None:
    rng = random.Random(seed)
    store = Store(8, m=3, k=2, hosts=rng.choice(list(HOSTS)))
    ids: list[str] = []
    for _ in range(40):
        happen(store, ids, rng)
        live = [id_ for id_ in ids if store.state.ledger.live(id_)]
        damaged = frozenset((id_, rng.randrange(5)) for id_ in live if rng.random() < 0.2)
        gone = frozenset(a.slot for a in store.state.agents.values() if not a.up)
        unfit = frozenset(slot for slot in range(8) if rng.random() < 0.1)
        store.check(damaged, gone=frozenset(g for g in gone if rng.random() < 0.5), unfit=unfit)
        check_sparse(store.state.ledger)


def happen(store: Store, ids: list[str], rng: random.Random) -> None:
    up = [a.slot for a in store.state.agents.values() if a.up]
    slot = rng.randrange(8)
    match rng.randrange(8):
        case 0:
            store.stop(slot)
        case 1:
            store.start(slot)
        case 2:
            store.restart(slot)
        case 3:
            store.apply(c.Drain(slot, rng.random() < 0.5))
        case 4 if ids:
            store.delete(f"/{rng.choice(ids)}/{rng.randrange(2)}")
        case 5 if ids:
            move(store, rng.choice(ids), rng)
        case 6 if store.state.ledger.freed_ms:
            store.apply(c.Reap((next(iter(store.state.ledger.freed_ms)),)))
        case _ if len(up) >= 3:
            width = min(rng.choice((3, 5, 5)), len(up))
            ids.append(store.write(*rng.sample(up, width)))


def move(store: Store, id_: str, rng: random.Random) -> None:
    entry = store.state.ledger.entries.get(id_)
    if entry is None:
        return
    stripe = entry.stripe
    taken = {at.slot for at in stripe.places}
    free = [a for a in store.state.agents.values() if a.up and a.slot not in taken]
    if free:
        to = rng.choice(free)
        where = ((rng.randrange(len(stripe.places)), Place(to.slot, to.incarnation)),)
        store.apply(c.MoveShards((c.ShardMove(id_, stripe.version, where),)))


def test_what_is_judged_later_is_never_promised_before() -> None:
    """Agents go and come while nothing is judged: the margin stays at or below the truth, and
    is the truth once all is judged."""
    for first, second, back in permutations(range(6), 3):
        store = Store(6, m=2, k=2)
        store.write_in_rotation(12)
        health, agents = store.state.health, store.state.agents
        for slot, up in ((first, False), (second, False), (back, False), (back, True)):
            agents[slot] = AgentInfo(
                slot, 1, "b", "a", "g", "s", f"host-{slot}", "n", 1, up=up, down_ms=1
            )
            health.touch(slot, is_loss=not up)
            for limit in (0, 1, 1, 2):
                health.settle(limit)
                found, truth = counted(store.state), recount(store.state)
                for parity, (agents_, hosts) in truth["margins"].items():
                    assert found["margins"][parity][0] <= agents_
                    assert found["margins"][parity][1] <= hosts
        while not health.settle(1):
            pass
        assert counted(store.state) == recount(store.state)


def test_a_restored_state_knows_the_same_of_its_stripes_and_keeps_their_order() -> None:
    store = Store(7, m=4, k=2)
    ids = store.write_in_rotation(30)
    store.delete(f"/{ids[3]}")
    store.delete(f"/{ids[4]}/0")
    store.stop(2)
    copy = NamespaceState()
    restorer = s.Restorer(copy)
    for chunk in s.snapshot(store.state):
        restorer.take(chunk)
    before, store.state = store.state, copy
    store.check(gone=frozenset({2}))
    check_sparse(copy.ledger)
    assert counted(copy) == counted(before)


def test_stripes_that_lie_alike_are_one_group_whatever_the_order_of_their_shards() -> None:
    store = Store(6, m=4, k=2)
    for turn in range(50):
        store.write(*((turn + i) % 6 for i in range(6)))
    assert store.state.health.groups == 1
    assert sorted(store.state.health.stripes_on(3)) == sorted(store.state.ledger.entries)
    store.write(0, 1, 2, 3)
    assert store.state.health.groups == 2
    for id_ in list(store.state.ledger.entries):
        store.delete(f"/{id_}")
    assert store.state.health.groups == 0
    assert list(store.state.health.stripes_on(3)) == []


@pytest.mark.parametrize("needed", [1, 2, 3, 4])
def test_the_worst_hosts_are_lost_first(needed: int) -> None:
    for count in range(7):
        for hosts in product("abc", repeat=count):
            assert hosts_to_lose(list(hosts), needed) == hosts_left(list(hosts), needed)
