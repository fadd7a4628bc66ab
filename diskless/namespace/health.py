"""How well every stripe is, kept up to date as commands are applied.

Stripes of one shape whose shards lie on the same agents are one *group*: what is true of
one is true of all. So a command that defines, moves or frees a stripe costs that stripe,
and an agent that comes or goes costs the groups on it, however many stripes there are.
Placement in rotation makes about as many groups as there are agents; repairs make more, at
the very most one for each stripe. Therefore groups are judged a bounded number at a time:
those that wait for it are *stale*, and until then the tally is a bound that promises too
little, never too much.

All of this follows from the agents and the live stripes. It is not replicated, and a
restored state builds it as its stripes come in. Damage that agents report is no part of it
and is laid over it on request (`tally`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field

from diskless.model import PRIORITY_DEFAULT, AgentInfo, Place, ShardName, Stripe
from diskless.repair import BLOCK_BITS, Condition, condition

SETTLE_GROUPS = 500
"""Groups judged at a stretch: a few milliseconds."""

INCARNATION_BITS = 40

_Key = tuple[int, ...]


class Judgement(Struct, frozen=True, gc=False):
    """What the roster says of a stripe's shards."""

    spare: int
    """How many more shards may be lost; negative if the stripe cannot be read."""
    spare_hosts: int
    """How many more hosts may die at once; -1 if the stripe cannot be read."""
    is_sound: bool
    is_doubled: bool
    """Whether some host has several of its shards."""


def judge(
    stripe: Stripe, agents: Mapping[int, AgentInfo], damaged: Collection[ShardName] = ()
) -> Judgement:
    hosts: list[str] = []
    sound = 0
    for index, place in enumerate(stripe.places):
        found = condition(place, agents, damaged=bool(damaged) and (stripe.id, index) in damaged)
        if found.readable:
            hosts.append(agents[place.slot].host)
            sound += found is Condition.SOUND
    return Judgement(
        len(hosts) - stripe.data_shards,
        hosts_to_lose(hosts, stripe.data_shards),
        sound == len(stripe.places),
        len(set(hosts)) < len(hosts),
    )


def hosts_to_lose(shard_hosts: list[str], needed: int) -> int:
    """How many hosts may die at once, the worst first, with `needed` of these left; -1 if
    they are too few already."""
    left, lost = len(shard_hosts), 0
    if left < needed:
        return -1
    for size in sorted(Counter(shard_hosts).values(), reverse=True):
        left -= size
        if left < needed:
            break
        lost += 1
    return lost


class _Class:
    """Stripes of one parity, counted by how well they are."""

    __slots__ = ("floor", "floor_hosts", "spares", "spares_hosts", "standings")

    def __init__(self) -> None:
        self.standings: Counter[str] = Counter()
        self.spares: Counter[int] = Counter()
        self.spares_hosts: Counter[int] = Counter()
        self.floor = self.floor_hosts = 0

    def count(self, judged: Judgement, parity_shards: int, stripes: int) -> None:
        spare, spare_hosts = judged.spare, judged.spare_hosts
        self.standings[
            "lost" if spare < 0 else "healthy" if spare >= parity_shards else "degraded"
        ] += stripes
        self.spares[spare] += stripes
        self.spares_hosts[spare_hosts] += stripes
        if stripes < 0:
            if not self.spares[spare]:
                del self.spares[spare]
            if not self.spares_hosts[spare_hosts]:
                del self.spares_hosts[spare_hosts]

    def copy(self) -> "_Class":
        other = _Class()
        other.standings = self.standings.copy()
        other.spares = self.spares.copy()
        other.spares_hosts = self.spares_hosts.copy()
        other.floor, other.floor_hosts = self.floor, self.floor_hosts
        return other

    def note_floor(self) -> None:
        self.floor = min(self.spares, default=0)
        self.floor_hosts = min(self.spares_hosts, default=0)


_STANDINGS = ("healthy", "degraded", "lost")


class Tally:
    """Stripes counted by their parity, and by how well they are."""

    __slots__ = ("_classes", "doubts")

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self.doubts = 0
        """How many more agents may have been lost than some judgements know of."""

    def count(self, judged: Judgement, parity_shards: int, stripes: int) -> None:
        """Adds so many stripes of this kind, or takes them away."""
        found = self._classes.get(parity_shards)
        if found is None:
            found = self._classes[parity_shards] = _Class()
        found.count(judged, parity_shards, stripes)

    def copy(self) -> "Tally":
        other = Tally()
        other._classes = {parity: found.copy() for parity, found in self._classes.items()}
        other.doubts = self.doubts
        return other

    def doubt_one(self, *, afresh: bool) -> None:
        """One more agent is lost, and which stripes are worse off is not known yet: each by
        one shard, and so by one host, at most. `afresh` if all were judged before."""
        if afresh or not self.doubts:
            for found in self._classes.values():
                found.note_floor()
        self.doubts += 1

    @property
    def classes(self) -> list[int]:
        """The parities that there are stripes of, the highest first."""
        found = (parity for parity, one in self._classes.items() if one.spares)
        return sorted(found, reverse=True)

    @property
    def standings(self) -> dict[str, int]:
        known = dict.fromkeys(_STANDINGS, 0)
        for found in self._classes.values():
            for name in _STANDINGS:
                known[name] += found.standings[name]
        return {"total": sum(known.values())} | known

    def standings_of(self, parity_shards: int) -> dict[str, int]:
        found = self._classes[parity_shards].standings
        known = {name: found[name] for name in _STANDINGS}
        return {"total": sum(known.values())} | known

    def margin(self, parity_shards: int) -> int:
        """How many agents may be lost before a stripe of so much parity, or of more, is: at
        least so many. Stripes of less are a class of their own."""
        return min(
            (self._least(one.spares, one.floor, parity_shards) for one in self._of(parity_shards)),
            default=parity_shards,
        )

    def margin_hosts(self, parity_shards: int) -> int:
        return min(
            (
                self._least(one.spares_hosts, one.floor_hosts, parity_shards)
                for one in self._of(parity_shards)
            ),
            default=parity_shards,
        )

    def margin_of(self, parity_shards: int) -> int:
        """The same, of the stripes of exactly so much parity."""
        found = self._classes[parity_shards]
        return self._least(found.spares, found.floor, parity_shards)

    def _of(self, parity_shards: int) -> list[_Class]:
        return [
            one for parity, one in self._classes.items() if parity >= parity_shards and one.spares
        ]

    def _least(self, spares: Counter[int], floor: int, parity_shards: int) -> int:
        least = min(spares, default=parity_shards)
        if self.doubts:
            least = min(least, floor - self.doubts)
        return max(min(least, parity_shards), -1)


class Group(Struct, eq=False, gc=False):
    """Live stripes of one shape on the same agents. Part of no cycle, as an `Entry`."""

    id: int
    key: _Key
    sample: Stripe
    """A stripe without a name, so that no damage is known of it."""
    judged: Judgement
    priority: int = PRIORITY_DEFAULT
    stripes: int = 0
    payload_bytes: int = 0
    blocks: dict[int, dict[int, str]] = field(default_factory=dict)


def _key(stripe: Stripe, priority: int) -> _Key:
    """The same for stripes of one shape on the same lives of agents, in whatever order."""
    where = [place.slot << INCARNATION_BITS | place.incarnation for place in stripe.places]
    return (priority, stripe.data_shards, stripe.parity_shards, *sorted(where))


class Health:
    def __init__(self, agents: Mapping[int, AgentInfo]) -> None:
        """`agents` is the roster itself: `touch` must follow every change of it."""
        self._agents = agents
        self._groups: dict[_Key, Group] = {}
        self._by_id: dict[int, Group] = {}
        self._on: dict[int, dict[Group, None]] = {}  # by slot, whatever the incarnation
        self._by_width: dict[int, dict[Group, None]] = {}
        self._unsound: dict[Group, None] = {}
        self._doubled: dict[Group, None] = {}
        self.stale: dict[Group, None] = {}  # what `settle` has yet to judge
        self._tally = Tally()
        self._last_id = 0
        self.shards_at: Counter[Place] = Counter()
        """Shards of live stripes, by the life of the slot that they were stored in."""
        self.bytes_placed: Counter[int] = Counter()
        """The bytes of these shards, by slot."""

    # -- changes ----------------------------------------------------------------

    def enter(self, stripe: Stripe, number: int, priority: int = PRIORITY_DEFAULT) -> int:
        """A stripe is live now, or lies elsewhere; returns the id of its group.

        Numbers say which of two stripes was defined first.
        """
        key = _key(stripe, priority)
        group = self._groups.get(key)
        if group is None:
            group = self._add_group(key, stripe, priority)
        group.blocks.setdefault(number >> BLOCK_BITS, {})[number] = stripe.id
        self._weigh(group, 1, stripe)
        return group.id

    def leave(self, id_: int, stripe: Stripe, number: int) -> None:
        """Undoes `enter`, which returned this id."""
        group = self._by_id[id_]
        block = group.blocks[number >> BLOCK_BITS]
        del block[number]
        if not block:
            del group.blocks[number >> BLOCK_BITS]
        self._weigh(group, -1, stripe)
        if not group.stripes:
            self._drop_group(group)

    def touch(self, slot: int, *, is_loss: bool) -> None:
        """The roster says something else of an agent; `settle` judges its groups again.

        To mark them is one merge of dictionaries, some ten nanoseconds a group.
        """
        settled = not self.stale
        self.stale.update(self._on.get(slot, {}))
        if self.stale and is_loss:
            self._tally.doubt_one(afresh=settled)

    def settle(self, limit: int = SETTLE_GROUPS) -> bool:
        """Judges some of the groups that are stale; whether none is left."""
        stale = self.stale
        while stale and limit > 0:
            group, _ = stale.popitem()
            self._judge(group)
            limit -= 1
        if not stale:
            self._tally.doubts = 0
        return not stale

    def _weigh(self, group: Group, stripes: int, stripe: Stripe) -> None:
        group.stripes += stripes
        group.payload_bytes += stripes * stripe.payload_bytes
        shard_bytes = stripes * stripe.shard_bytes
        self._tally.count(group.judged, group.sample.parity_shards, stripes)
        at, bytes_placed = self.shards_at, self.bytes_placed
        for place in group.sample.places:
            at[place] += stripes
            bytes_placed[place.slot] += shard_bytes
        if stripes < 0:
            for place in group.sample.places:
                if not at[place]:
                    del at[place]

    def _add_group(self, key: _Key, like: Stripe, priority: int) -> Group:
        self._last_id += 1
        sample = Stripe("", like.data_shards, like.parity_shards, 0, like.places)
        group = Group(self._last_id, key, sample, judge(sample, self._agents), priority)
        self._groups[key] = self._by_id[group.id] = group
        for place in like.places:
            self._on.setdefault(place.slot, {})[group] = None
        self._by_width.setdefault(like.data_shards, {})[group] = None
        self._file(group)
        return group

    def _drop_group(self, group: Group) -> None:
        del self._groups[group.key], self._by_id[group.id]
        for place in group.sample.places:
            del self._on[place.slot][group]
        del self._by_width[group.sample.data_shards][group]
        for index in (self._unsound, self._doubled, self.stale):
            index.pop(group, None)

    def _judge(self, group: Group) -> None:
        parity_shards = group.sample.parity_shards
        self._tally.count(group.judged, parity_shards, -group.stripes)
        group.judged = judge(group.sample, self._agents)
        self._tally.count(group.judged, parity_shards, group.stripes)
        self._file(group)

    def _file(self, group: Group) -> None:
        _set_in(self._unsound, group, not group.judged.is_sound)
        _set_in(self._doubled, group, group.judged.is_doubled)

    # -- answers ----------------------------------------------------------------

    def tally(
        self, damaged: Collection[ShardName] = (), stripes: Iterable[tuple[int, Stripe]] = ()
    ) -> Tally:
        """All live stripes, counted. `damaged` shards count as lost: `stripes` are those
        that have some, each with the id of its group."""
        tally = self._tally.copy()
        for id_, stripe in stripes:
            tally.count(self._by_id[id_].judged, stripe.parity_shards, -1)
            tally.count(judge(stripe, self._agents, damaged), stripe.parity_shards, 1)
        return tally

    def is_readable(self, id_: int) -> bool:
        """Whether the stripes of a group can be read, as far as the roster says."""
        return self._by_id[id_].judged.spare >= 0

    def ailing(self, *, data_shards: int, shares_hosts: bool) -> Iterator[list[Group]]:
        """The groups that repair may have something to do for, and few others, some of them
        twice: whose shards are not all sound; that are narrower than `data_shards`; and, if
        it matters, that have several shards on a host."""
        yield list(self._unsound)
        for width in [width for width in self._by_width if width < data_shards]:
            # Those without parity are as wide as they are meant to be.
            yield [group for group in self._by_width[width] if group.sample.parity_shards]
        if shares_hosts:
            yield list(self._doubled)

    @property
    def shards_placed(self) -> Counter[int]:
        """Shards of live stripes that each slot should have, or should have had."""
        placed: Counter[int] = Counter()
        for place, shards in self.shards_at.items():
            placed[place.slot] += shards
        return placed

    def groups_on(self, slot: int) -> list[Group]:
        """Those that have, or had, a shard on an agent."""
        return list(self._on.get(slot, ()))

    def stripes_on(self, slot: int) -> Iterator[str]:
        """The live stripes that have, or had, a shard on an agent."""
        for group in self._on.get(slot, ()):
            for block in group.blocks.values():
                yield from block.values()

    @property
    def groups(self) -> int:
        return len(self._groups)


def _set_in(index: dict[Group, None], group: Group, is_member: bool) -> None:
    if is_member:
        index[group] = None
    else:
        index.pop(group, None)
