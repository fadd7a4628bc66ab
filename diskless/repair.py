"""What to repair, in which order, and where to: pure choices over stripes and agents.

Owns the rules for when a shard counts as lost. A shard is *sound* on an agent that is up
in the life that stored it, *leaving* if that agent is draining, *away* while that agent
is down but may return with it, and *missing* otherwise: a later life, down for longer
than the repair delay, or damaged. A stripe whose shards are all sound is spread out again
if they lie closer together on hosts than they must. A slow agent keeps its shards and gets
others only if nobody else can take them. Nothing here moves anything.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from diskless.errors import TooFewAgents
from diskless.model import AgentInfo, Place, Stripe
from diskless.placement import place, prompt, stripe_width

ShardName = tuple[str, int]
"""A stripe's id and a shard's index."""


def overdue(agents: Mapping[int, AgentInfo], *, now_ms: int, delay_s: float) -> frozenset[int]:
    """The slots of agents that have been down for so long that they are given up."""
    latest_ms = now_ms - 1000 * delay_s
    return frozenset(
        slot for slot, agent in agents.items() if not agent.up and agent.down_ms <= latest_ms
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

    @cached_property
    def takers(self) -> list[AgentInfo]:
        """Agents that a rebuilt shard may go to."""
        return [
            agent
            for agent in self.agents.values()
            if agent.up and not agent.draining and agent.slot not in self.unfit
        ]

    @cached_property
    def prompt_takers(self) -> list[AgentInfo]:
        """Those of them that are not slow."""
        return [agent for agent in self.takers if not agent.slow]

    @cached_property
    def width(self) -> int:
        """How many data shards a new stripe would get; 0 if none can be written."""
        alive = [agent for agent in self.agents.values() if agent.up and not agent.draining]
        chosen = prompt(alive, enough=self.parity_shards + 1)
        try:
            return stripe_width(
                data_shards=self.data_shards, parity_shards=self.parity_shards, alive=len(chosen)
            )
        except TooFewAgents:
            return 0

    @cached_property
    def shares_hosts(self) -> bool:
        """Whether agents share hosts, and there are several hosts: only then can shards lie
        closer together than they must."""
        hosts = Counter(agent.host for agent in self.agents.values() if agent.up)
        return len(hosts) > 1 and max(hosts.values()) > 1

    @cached_property
    def _crowded(self) -> dict[frozenset[int], bool]:
        """What `is_crowded` has found, by the slots of a stripe: many stripes share few sets of
        them. No more than there are stripes, and only while one plan is made."""
        return {}

    def is_crowded(self, stripe: Stripe) -> bool:
        """Whether a stripe whose shards are all sound has some that `spread_out` moves."""
        if not self.shares_hosts:
            return False
        slots = frozenset(place.slot for place in stripe.places)
        known = self._crowded.get(slots)
        if known is None:
            known = self._crowded[slots] = bool(spread_out(stripe, self))
        return known

    @cached_property
    def awaits_agents(self) -> bool:
        """Whether an agent is down that may come back any moment."""
        return any(not a.up and a.slot not in self.gone for a in self.agents.values())

    @cached_property
    def _sound_places(self) -> frozenset[Place]:
        return frozenset(
            Place(agent.slot, agent.incarnation)
            for agent in self.agents.values()
            if agent.up and not agent.draining
        )

    @cached_property
    def _damaged_stripes(self) -> frozenset[str]:
        return frozenset(stripe for stripe, _ in self.damaged)

    def is_well(self, stripe: Stripe) -> bool:
        """Whether there is nothing to do for a stripe; quick, for most are well."""
        sound = self._sound_places
        return (
            stripe.data_shards >= self.data_shards
            and stripe.id not in self._damaged_stripes
            and all(place in sound for place in stripe.places)
            and not self.is_crowded(stripe)
        )


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
    found: dict[str, list[int]] = {"sound": [], "leaving": [], "away": [], "missing": []}
    for index, where in enumerate(stripe.places):
        agent = cluster.agents.get(where.slot)
        if (
            agent is None
            or agent.incarnation != where.incarnation
            or (stripe.id, index) in cluster.damaged
        ):
            kind = "missing"
        elif agent.up:
            kind = "leaving" if agent.draining else "sound"
        else:
            kind = "missing" if agent.slot in cluster.gone else "away"
        found[kind].append(index)
    return Diagnosis(**{kind: tuple(indices) for kind, indices in found.items()})


def choose_targets(stripe: Stripe, cluster: Cluster, *, turn: int = 0) -> dict[int, int]:
    """The slots for the shards that are missing or leaving, as many as there is room for.

    Each on an agent that has no other shard of the stripe, on other hosts than these
    where there are enough. A damaged shard is replaced where it lies, and an agent that
    has returned without its shard gets it back: it was well placed there, and a plan that
    is made again finds what an interrupted one has stored. Slow agents get what no other
    can take: a shard that comes late is better than none. If all shards are sound, those
    that `spread_out` moves.
    """
    shards = diagnose(stripe, cluster)
    if len(shards.sound) == len(stripe.places):
        return spread_out(stripe, cluster, turn=turn)
    targets: dict[int, int] = {}
    for takers in (cluster.prompt_takers, cluster.takers):
        targets |= _targets_among(takers, stripe, shards, cluster, targets, turn)
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
    added, they are moved there: else the next host that dies would take them all.
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


@dataclass
class RepairPlan:
    """What there is to do for the stripes that were added, oldest first."""

    lost: list[str] = field(default_factory=list)
    """Fewer shards are left than the stripe needs: it cannot be rebuilt."""
    waiting: list[str] = field(default_factory=list)
    """Nothing can be done until an agent that is away has come back, or is given up."""
    stuck: list[str] = field(default_factory=list)
    """No agent can take the shards, and there is no narrower shape to go to."""
    _rebuild: list[tuple[int, int, str]] = field(default_factory=list)
    _reshape: list[tuple[int, int, str]] = field(default_factory=list)
    _count: int = 0

    def add(self, stripe: Stripe, cluster: Cluster) -> None:
        """Takes one more stripe, defined later than those before."""
        self._count += 1
        if cluster.is_well(stripe):
            return
        shards = diagnose(stripe, cluster)
        margin = len(shards.readable) - stripe.data_shards
        turn = (margin, -self._count, stripe.id)
        if not shards.missing and not shards.leaving:
            if shards.away:
                self.waiting.append(stripe.id)
            elif stripe.data_shards < cluster.width == cluster.data_shards:
                self._reshape.append(turn)
            elif cluster.is_crowded(stripe):
                # Last: somebody may be waiting for shards that leave an agent.
                self._rebuild.append((margin + 1, *turn[1:]))
        elif margin < 0:
            recoverable = margin + len(shards.away) >= 0
            (self.waiting if recoverable else self.lost).append(stripe.id)
        elif choose_targets(stripe, cluster):
            self._rebuild.append(turn)
        elif shards.away or cluster.awaits_agents:
            self.waiting.append(stripe.id)
        elif 0 < cluster.width < stripe.data_shards:
            self._reshape.append(turn)
        else:
            self.stuck.append(stripe.id)

    @property
    def rebuild(self) -> list[str]:
        """Stripes to rebuild shards of: smallest margin first, then the newest; those that are
        only spread out come last."""
        return [id_ for _, _, id_ in sorted(self._rebuild)]

    @property
    def reshape(self) -> list[str]:
        """Stripes to encode anew, in the same order: narrower than agents allow by now,
        or wider than those that are left."""
        return [id_ for _, _, id_ in sorted(self._reshape)]

    @property
    def is_empty(self) -> bool:
        return not (self._rebuild or self._reshape)


def plan_repair(stripes: Sequence[Stripe] | Iterator[Stripe], cluster: Cluster) -> RepairPlan:
    """The plan for all `stripes`, which come in the order in which they were defined."""
    plan = RepairPlan()
    for stripe in stripes:
        plan.add(stripe, cluster)
    return plan
