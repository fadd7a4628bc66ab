"""What to repair, in which order, and where to: pure choices over stripes and agents.

Owns the rules for when a shard counts as lost, for all who ask: the margin, repair and
repacking. A shard is *sound* on an agent that is up in the life that stored it, *leaving*
if that agent drains or is about to end, *away* while that agent is down but may return with
it, and *missing* otherwise: a later life, down for longer than the repair delay, or damaged. A
stripe whose shards are all sound is spread out again if they lie closer together on hosts
than they must. A slow agent keeps its shards and gets others only if nobody else can take
them. Nothing here moves anything.

What is to be done for a stripe follows from where its shards lie, so stripes that lie
alike are judged once (`Alike`), and a plan names stripes only as somebody works on them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Protocol

from msgspec.structs import replace

from diskless.errors import TooFewAgents
from diskless.model import PRIORITY_DEFAULT, AgentInfo, Place, ShardName, Stripe
from diskless.placement import full_width, place, prompt, stripe_width

BLOCK_BITS = 10
"""Stripes are numbered as they are defined; those of one block of numbers are put in order
at a stretch."""


class Condition(Enum):
    """What has become of a shard."""

    SOUND = "sound"
    LEAVING = "leaving"
    AWAY = "away"
    MISSING = "missing"

    @property
    def readable(self) -> bool:
        return self is Condition.SOUND or self is Condition.LEAVING


def condition(
    where: Place,
    agents: Mapping[int, AgentInfo],
    *,
    gone: Collection[int] = (),
    damaged: bool = False,
) -> Condition:
    """The one judgement of a shard that was stored at `where`.

    `gone` are slots that are down and not expected back; `damaged` is what its holder says.
    """
    agent = agents.get(where.slot)
    if agent is None or agent.incarnation != where.incarnation or damaged:
        return Condition.MISSING
    if agent.up:
        return Condition.LEAVING if agent.leaves else Condition.SOUND
    return Condition.MISSING if where.slot in gone else Condition.AWAY


def overdue(agents: Mapping[int, AgentInfo], *, elapsed_ms: int, delay_s: float) -> frozenset[int]:
    """The slots of agents that have been down for so long that they are given up."""
    latest_ms = elapsed_ms - 1000 * delay_s
    return frozenset(
        slot for slot, agent in agents.items() if not agent.up and agent.down_ms <= latest_ms
    )


UNSTEADY_LAPSES = 3
UNSTEADY_S = 600.0
"""So often within so long: then an agent is unsteady."""


def unsteady(lapses: Mapping[int, Iterable[int]], *, elapsed_ms: int) -> frozenset[int]:
    """The slots of agents that come and go: which went down, restarted or were found to be slow
    several times lately. `lapses` are the times of that. What has been says so, and nothing
    is guessed beyond that; who has been steady for long enough is so again."""
    since_ms = elapsed_ms - 1000 * UNSTEADY_S
    return frozenset(
        slot
        for slot, times in lapses.items()
        if sum(at_ms > since_ms for at_ms in times) >= UNSTEADY_LAPSES
    )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The agents as a plan takes them to be."""

    agents: Mapping[int, AgentInfo]
    data_shards: int
    parity_shards: int
    gone: Collection[int] = ()
    """Slots that are down and not expected back; see `overdue`."""
    damaged: Collection[ShardName] = ()
    """Shards that their holders know to be corrupt, or do not have."""
    unfit: Collection[int] = ()
    """Slots that take no shards now: full, or silent."""
    unsteady: Collection[int] = ()
    """Slots that get shards only if nobody else can take them; see `unsteady`."""

    @cached_property
    def takers(self) -> list[AgentInfo]:
        """Agents that a rebuilt shard may go to."""
        return [
            agent
            for agent in self.agents.values()
            if agent.up and not agent.leaves and agent.slot not in self.unfit
        ]

    @cached_property
    def prompt_takers(self) -> list[AgentInfo]:
        """Those of them that are not slow."""
        return [agent for agent in self.takers if not agent.slow]

    @cached_property
    def steady_takers(self) -> list[AgentInfo]:
        """Those of these that do not come and go."""
        return [agent for agent in self.prompt_takers if agent.slot not in self.unsteady]

    @cached_property
    def width(self) -> int:
        """How many data shards a new stripe of the cluster's own parity would get; 0 if none can
        be written."""
        return self.width_of(self.parity_shards)

    def width_of(self, parity_shards: int) -> int:
        """The same, of a stripe of so much parity."""
        known = self._widths.get(parity_shards)
        if known is not None:
            return known
        alive = [agent for agent in self.agents.values() if agent.up and not agent.leaves]
        chosen = prompt(alive, enough=parity_shards + 1)
        try:
            width = stripe_width(
                data_shards=self.data_shards, parity_shards=parity_shards, alive=len(chosen)
            )
        except TooFewAgents:
            width = 0
        self._widths[parity_shards] = width
        return width

    @cached_property
    def _widths(self) -> dict[int, int]:
        return {}

    @cached_property
    def shares_hosts(self) -> bool:
        """Whether agents share hosts, and there are several hosts: only then can shards lie
        closer together than they must."""
        hosts = Counter(agent.host for agent in self.agents.values() if agent.up)
        return len(hosts) > 1 and max(hosts.values()) > 1

    def is_crowded(self, stripe: Stripe) -> bool:
        """Whether a stripe whose shards are all sound has some that `spread_out` moves."""
        return bool(spread_out(stripe, self))

    @cached_property
    def awaits_agents(self) -> bool:
        """Whether an agent is down that may come back any moment."""
        return any(not a.up and a.slot not in self.gone for a in self.agents.values())


def _ending(stripe: Stripe, shards: "Diagnosis", cluster: Cluster) -> int:
    """How many of the shards that can be read are on agents whose ends are announced."""
    return sum(cluster.agents[stripe.places[i].slot].ends_ms > 0 for i in shards.leaving)


@dataclass(frozen=True)
class Diagnosis:
    """A stripe's shards, by index, sorted by what has become of them."""

    sound: tuple[int, ...]
    leaving: tuple[int, ...]
    away: tuple[int, ...]
    missing: tuple[int, ...]

    @property
    def readable(self) -> tuple[int, ...]:
        return self.sound + self.leaving


def diagnose(stripe: Stripe, cluster: Cluster) -> Diagnosis:
    found: dict[Condition, list[int]] = {kind: [] for kind in Condition}
    for index, where in enumerate(stripe.places):
        kind = condition(
            where,
            cluster.agents,
            gone=cluster.gone,
            damaged=(stripe.id, index) in cluster.damaged,
        )
        found[kind].append(index)
    return Diagnosis(**{kind.value: tuple(indices) for kind, indices in found.items()})


def choose_targets(stripe: Stripe, cluster: Cluster, *, turn: int = 0) -> dict[int, int]:
    """The slots for the shards that are missing or leaving, as many as there is room for.

    Each on an agent that has no other shard of the stripe, on other hosts than these
    where there are enough. A damaged shard is replaced where it lies, and an agent that
    has returned without its shard gets it back: it was well placed there, and a plan that
    is made again finds what an interrupted one has stored. Unsteady agents get what no other
    can take, and slow ones what is left then: a shard that comes late is better than none.
    If all shards are sound, those that `spread_out` moves.
    """
    shards = diagnose(stripe, cluster)
    if len(shards.sound) == len(stripe.places):
        return spread_out(stripe, cluster, turn=turn)
    takers = cluster.steady_takers
    targets = _targets_among(takers, stripe, shards, cluster, {}, turn)
    for more in (cluster.prompt_takers, cluster.takers):
        wanting = len(shards.missing) + len(shards.leaving) - len(targets)
        if wanting and len(more) > len(takers):
            targets |= _targets_among(more, stripe, shards, cluster, targets, turn)
            takers = more
    return targets


def _targets_among(
    takers: Sequence[AgentInfo],
    stripe: Stripe,
    shards: Diagnosis,
    cluster: Cluster,
    found: Mapping[int, int],
    turn: int,
) -> dict[int, int]:
    """The slots, of these agents, for shards that have none in `found` yet."""
    kept = {stripe.places[index].slot for index in shards.sound + shards.away}
    free = {agent.slot: agent for agent in takers if agent.slot not in {*kept, *found.values()}}
    targets = {
        index: stripe.places[index].slot
        for index in shards.missing
        if index not in found and stripe.places[index].slot in free
    }
    taken = {*kept, *found.values(), *targets.values()}
    hosts = [cluster.agents[slot].host for slot in taken]
    others = [agent for slot, agent in free.items() if slot not in taken]
    homeless = [
        index
        for index in shards.missing + shards.leaving
        if index not in found and index not in targets
    ]
    slots = place(others, count=len(homeless), turn=turn, avoid=hosts)
    return targets | dict(zip(homeless, slots, strict=False))


def spread_out(stripe: Stripe, cluster: Cluster, *, turn: int = 0) -> dict[int, int]:
    """New slots for shards of a sound stripe whose host has more of them than it must.

    Repair stores shards side by side when no other host is left. Once one is back, or was
    added, they are moved there: else the next host that dies would take them all. That counts
    more than whether an agent is unsteady.
    """
    if not cluster.shares_hosts:
        return {}
    at = {index: cluster.agents[place.slot] for index, place in enumerate(stripe.places)}
    taken = {agent.slot for agent in at.values()}
    free = [agent for agent in cluster.prompt_takers if agent.slot not in taken]
    shards_on = Counter(agent.host for agent in at.values())
    targets: dict[int, int] = {}
    while free:
        to = min(free, key=lambda a: (shards_on[a.host], (a.slot + turn) % len(cluster.agents)))
        crowded = max(at, key=lambda index: shards_on[at[index].host])
        if shards_on[at[crowded].host] - shards_on[to.host] < 2:
            break
        shards_on[at[crowded].host] -= 1
        shards_on[to.host] += 1
        at[crowded], targets[crowded] = to, to.slot
        free.remove(to)
    return targets


class Need(Enum):
    """What there is to do for a stripe that is not well."""

    REBUILD = "rebuild"
    RESHAPE = "reshape"
    """Encode it again: it is narrower than agents allow by now, or wider than those left."""
    WAIT = "wait"
    """Nothing can be done until an agent that is away has come back, or is given up."""
    STUCK = "stuck"
    """No agent can take the shards, and there is no narrower shape to go to."""
    LOST = "lost"
    """Fewer shards are left than the stripe needs: it cannot be rebuilt."""


def triage(stripe: Stripe, cluster: Cluster) -> tuple[Need, int] | None:
    """What a stripe needs and how urgently, the smaller the sooner; None if it is well.

    That is its margin, once the agents have ended whose ends are announced.
    """
    shards = diagnose(stripe, cluster)
    margin = len(shards.readable) - stripe.data_shards
    urgency = margin - _ending(stripe, shards, cluster)
    parity, width = stripe.parity_shards, cluster.width_of(stripe.parity_shards)
    full = full_width(data_shards=cluster.data_shards, parity_shards=parity)
    if not shards.missing and not shards.leaving:
        if shards.away:
            return Need.WAIT, margin
        if stripe.data_shards < width == full:
            return Need.RESHAPE, margin
        # Last: somebody may be waiting for shards that leave an agent.
        return (Need.REBUILD, margin + 1) if cluster.is_crowded(stripe) else None
    if margin < 0:
        recoverable = margin + len(shards.away) >= 0
        return (Need.WAIT if recoverable else Need.LOST), margin
    if choose_targets(stripe, cluster):
        return Need.REBUILD, urgency
    if shards.away or cluster.awaits_agents:
        return Need.WAIT, urgency
    if 0 < width < stripe.data_shards:
        return Need.RESHAPE, urgency
    return Need.STUCK, urgency


class Alike(Protocol):
    """Stripes of one shape on the same agents: what is true of one is true of all."""

    @property
    def sample(self) -> Stripe: ...

    @property
    def stripes(self) -> int: ...

    @property
    def payload_bytes(self) -> int: ...

    @property
    def priority(self) -> int: ...

    @property
    def blocks(self) -> Mapping[int, Mapping[int, str]]:
        """Their ids by number, by the number's block; only of stripes that files lie in."""
        ...


@dataclass(frozen=True)
class Single:
    """A stripe that is like no other, because of its damage or because nobody compared."""

    sample: Stripe
    number: int
    priority: int = PRIORITY_DEFAULT
    stripes: int = 1

    @property
    def payload_bytes(self) -> int:
        return self.sample.payload_bytes

    @property
    def blocks(self) -> Mapping[int, Mapping[int, str]]:
        return {self.number >> BLOCK_BITS: {self.number: self.sample.id}}


_Urgency = tuple[bool, int, int, int]


@dataclass
class Worklist:
    """Stripes in the order in which they should be worked on: the highest priority first, then
    the highest parity, for the others hold what may be lost; then the smallest margin, then the
    newest. Last those that are only spread out. Their names are looked up as it is gone through:
    one that has been freed or moved meanwhile is not among them."""

    skip: Collection[str] = ()
    """Stripes that are alike to none, though they lie alike; see `Single`."""
    stripes: int = 0
    payload_bytes: int = 0
    by_parity: Counter[int] = field(default_factory=Counter)
    """How many of the stripes have so much parity."""
    _by_urgency: dict[_Urgency, dict[int, list[Alike]]] = field(default_factory=dict)

    def add(self, alike: Alike, margin: int) -> None:
        self.stripes += alike.stripes
        self.payload_bytes += alike.payload_bytes
        parity_shards = alike.sample.parity_shards
        self.by_parity[parity_shards] += alike.stripes
        is_well = margin > parity_shards
        urgency = (is_well, -alike.priority, -parity_shards, margin)
        blocks = self._by_urgency.setdefault(urgency, {})
        for block in alike.blocks:
            blocks.setdefault(block, []).append(alike)

    def leave_out(self, stripe: Stripe) -> None:
        """One of those that were added is in `skip`."""
        self.stripes -= 1
        self.by_parity[stripe.parity_shards] -= 1
        self.payload_bytes -= stripe.payload_bytes

    def __bool__(self) -> bool:
        return self.stripes > 0

    def __iter__(self) -> Iterator[str]:
        for _, blocks in sorted(self._by_urgency.items()):
            for block in sorted(blocks, reverse=True):
                yield from self._of_block(block, blocks[block])

    def _of_block(self, block: int, members: Iterable[Alike]) -> Iterator[str]:
        found: dict[int, str] = {}
        for alike in members:
            known = alike.blocks.get(block, {})
            if isinstance(alike, Single) or not self.skip:
                found |= known
            else:
                found |= {n: id_ for n, id_ in known.items() if id_ not in self.skip}
        for number in sorted(found, reverse=True):
            yield found[number]


class RepairPlan:
    """What there is to do for the stripes that were added."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        damaged = frozenset(stripe for stripe, _ in cluster.damaged)
        self._lists = {need: Worklist(skip=damaged) for need in Need}
        self.at_stake = 0
        """Stripes that were lost if all agents ended now whose ends are announced."""

    def add(self, alike: Alike) -> None:
        """Takes stripes that lie alike, at the cost of judging one of them."""
        found = triage(alike.sample, self._cluster)
        if found is not None:
            self._lists[found[0]].add(alike, found[1])
            self.at_stake += alike.stripes * _is_at_stake(*found)

    def add_damaged(self, stripe: Stripe, number: int, priority: int = PRIORITY_DEFAULT) -> None:
        """Takes one for itself that was added with others, as which it would be well off."""
        found = triage(_undamaged(stripe), self._cluster)
        if found is not None:
            self._lists[found[0]].leave_out(stripe)
            self.at_stake -= _is_at_stake(*found)
        self.add(Single(stripe, number, priority))

    @property
    def lost(self) -> Worklist:
        return self._lists[Need.LOST]

    @property
    def waiting(self) -> Worklist:
        return self._lists[Need.WAIT]

    @property
    def stuck(self) -> Worklist:
        return self._lists[Need.STUCK]

    @property
    def rebuild(self) -> Worklist:
        """Those that are only spread out come last."""
        return self._lists[Need.REBUILD]

    @property
    def reshape(self) -> Worklist:
        return self._lists[Need.RESHAPE]

    @property
    def is_empty(self) -> bool:
        return not (self.rebuild or self.reshape)


def _is_at_stake(need: Need, urgency: int) -> bool:
    """Whether a stripe can be read, and could not without the agents whose ends are announced."""
    return urgency < 0 and need in (Need.REBUILD, Need.RESHAPE, Need.STUCK)


def _undamaged(stripe: Stripe) -> Stripe:
    """One that lies alike and that nobody says is damaged."""
    return replace(stripe, id="")
