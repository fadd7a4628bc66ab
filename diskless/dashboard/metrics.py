"""Every metric: its name, kind, help and labels, and where its value comes from. Pure.

An agent tells of itself, and the one that leads also of the cluster: so nothing is told twice,
and what a replaced leader said ends with its view. Names follow Prometheus' conventions. Labels
have few values, which no client chooses: paths are those that an operator has set a quota for,
and of many the fullest. docs/metrics.md is made from these tables.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from diskless.agent.counts import EDGES_S
from diskless.dashboard.own import AgentCounts, Buckets
from diskless.model import (
    CLOSED,
    AgentStatus,
    ClassStatus,
    ClusterStatus,
    DrillStatus,
    EvictionStatus,
    QuotaStatus,
    TierReport,
    VoterStatus,
)

AGENT_STATES = ("starting", "up", "slow", "draining", "ending", "down")
TIER_STATES = ("draining", "failing", CLOSED, "superseded")
EVICTION_STATES = ("idle", "evicting", "stuck")
QUOTAS_MAX = 50
"""Of which it is told how full they are."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

S = TypeVar("S")
Labelled = Iterable[tuple[tuple[str, ...], float]]
"""Values with those of their labels."""


class Spec(NamedTuple, Generic[S]):
    """One metric, read from a source `S`."""

    name: str
    kind: str
    """gauge, counter or histogram."""
    help: str
    read: Callable[[S], Any]
    """A number; Labelled if there are labels; Buckets of a histogram. None leaves it out."""
    labels: tuple[str, ...] = ()


def _gauge(name: str, help_: str, read: Callable[[S], Any], *labels: str) -> Spec[S]:
    return Spec(f"diskless_{name}", "gauge", help_, read, labels)


def _counter(name: str, help_: str, read: Callable[[S], Any], *labels: str) -> Spec[S]:
    return Spec(f"diskless_{name}_total", "counter", help_, read, labels)


def _histogram(name: str, help_: str, read: Callable[[S], Buckets]) -> Spec[S]:
    return Spec(f"diskless_{name}", "histogram", help_, read)


AGENT: tuple[Spec[AgentCounts], ...] = (
    _gauge("info", "Always 1: which agent of which cluster this is, and its version.",
           lambda a: [((a.agent, a.cluster, a.version), 1)], "agent", "cluster", "version"),
    _gauge("leads", "1 if this agent leads the namespace, else 0.", lambda a: a.leads),
    _counter("leader_changes", "The number of the view that this voter takes part in: each new one "
             "has another leader. Only voters have it.", lambda a: a.view if a.is_voter else None),
    _gauge("memory_bytes", "What this agent keeps, by kind: the account that --memory bounds. "
           "Of these copies give way as soon as anything else needs the room.",
           lambda a: [((kind,), count) for kind, count in a.memory.items()], "kind"),
    _gauge("memory_max_bytes", "What all of memory_bytes may come to: --memory.",
           lambda a: a.memory_max),
    _gauge("shards", "Shards in this agent's memory.", lambda a: a.shards),
    _gauge("loop_lag_seconds", "How late the event loop was in the last half minute or so: the "
           "median (p50), p99, and the worst (max).",
           lambda a: [(("p50",), a.loop_lag.p50_ms / 1000), (("p99",), a.loop_lag.p99_ms / 1000),
                      (("max",), a.loop_lag.max_ms / 1000)], "statistic"),
    _histogram("commit_duration_seconds", "How long commits of clients took at this agent, from "
               "their last byte to the acknowledgement.", lambda a: a.commits),
    _counter("committed_files", "Files that clients committed here.", lambda a: a.files_written),
    _counter("committed_bytes", "Bytes of those files.", lambda a: a.bytes_written),
    _histogram("read_duration_seconds", "How long reads of clients took at this agent.",
               lambda a: a.reads),
    _counter("read_bytes", "Bytes that clients read here.", lambda a: a.bytes_read),
    _counter("degraded_reads", "Reads of a stripe that had to do without a shard they wanted.",
             lambda a: a.degraded_reads),
    _counter("corrupt_shards", "Shards that failed their checksum when this agent read them.",
             lambda a: a.corrupt_shards),
    _gauge("copies_max_bytes", "What copies of other agents' shards may take: --cache.",
           lambda a: a.copies.bytes_max),
    _counter("copies_hits", "Ranges of other agents' shards that clients' reads found copied here.",
             lambda a: a.copies.hits),
    _counter("copies_misses", "Those that other agents were asked for.",
             lambda a: a.copies.misses),
    _counter("copies_hit_bytes", "Bytes of the ranges that were found.",
             lambda a: a.copies.bytes_hit),
    _counter("copies_missed_bytes", "Bytes of those that were not.",
             lambda a: a.copies.bytes_missed),
    _counter("corrupt_copies", "Copies that failed their checksum, and were dropped.",
             lambda a: a.copies.corrupt),
    _counter("client_errors", "Requests of clients that were answered with an error, by reason.",
             lambda a: [((reason,), count) for reason, count in a.errors.items()], "reason"),
    _gauge("connections", "Connections of clients that are open.", lambda a: a.connections),
    _counter("connections", "Connections of clients that were opened.",
             lambda a: a.connections_total),
    _gauge("requests_in_flight", "Requests of clients that are being worked on.",
           lambda a: a.in_flight),
    _counter("requests", "Frames that clients sent.", lambda a: a.frames_in),
    _counter("received_bytes", "Bytes that clients sent.", lambda a: a.bytes_in),
    _counter("sent_bytes", "Bytes that clients were sent.", lambda a: a.bytes_out),
    _counter("refused", "Attempts that a door refused, by door and reason.",
             lambda a: [(key, count) for key, count in a.refused.items()], "door", "reason"),
    _counter("peer_messages", "Messages that this agent sent to others over gRPC.",
             lambda a: a.messages_sent),
    _counter("audit_dropped", "Lines that are missing in this agent's audit file.",
             lambda a: a.audit_dropped),
    _counter("tier_requests", "Requests of this agent to the tier's store.",
             lambda a: a.tier.requests),
    _counter("tier_failed_requests", "Those that failed or were not answered in time.",
             lambda a: a.tier.requests_failed),
    _counter("tier_objects_put", "Objects that this agent stored in the tier.",
             lambda a: a.tier.objects_put),
    _counter("tier_put_bytes", "Bytes that this agent stored in the tier.",
             lambda a: a.tier.bytes_put),
    _counter("tier_got_bytes", "Bytes that this agent fetched from the tier.",
             lambda a: a.tier.bytes_got),
    _counter("cache_hits", "Reads of clients that found their bytes in memory.",
             lambda a: a.cache.hits),
    _counter("cache_misses", "Reads of clients that went to the tier.", lambda a: a.cache.misses),
    _counter("cache_wait_seconds", "What those have waited for the tier: by cache_misses_total, "
             "the time of hydration.", lambda a: a.cache.waited_ms / 1000),
    _counter("batch_notes", "Batches that Spark's listeners have reported to this agent.",
             lambda a: a.notes_told),
    _counter("batch_notes_dropped", "Those that did not reach a voter, once for each: it was "
             "silent, or too many waited.", lambda a: a.notes_dropped),
)  # fmt: skip


def _agents(read: Callable[[AgentStatus], float]) -> Callable[[ClusterStatus], Labelled]:
    return lambda c: [((agent.slot,), read(agent)) for agent in c.agents]


def _voters(read: Callable[[VoterStatus], float | None]) -> Callable[[ClusterStatus], Labelled]:
    return lambda c: [
        ((voter.slot,), value) for voter in c.voters if (value := read(voter)) is not None
    ]


def _tier(read: Callable[[TierReport], Any]) -> Callable[[ClusterStatus], Any]:
    return lambda c: None if c.tier is None else read(c.tier)


def _eviction(read: Callable[[EvictionStatus], Any]) -> Callable[[ClusterStatus], Any]:
    return _tier(lambda t: read(t.eviction))


def _drill(read: Callable[[DrillStatus], float]) -> Callable[[ClusterStatus], Any]:
    return _tier(lambda t: None if t.drill is None else read(t.drill))


def _classes(read: Callable[[ClassStatus], float]) -> Callable[[ClusterStatus], Labelled]:
    return lambda c: [((str(one.parity_shards),), read(one)) for one in c.classes]


def _quotas(read: Callable[[QuotaStatus], float]) -> Callable[[ClusterStatus], Labelled]:
    return lambda c: [((one.path,), read(one)) for one in _fullest(c.quotas)]


def _fullest(quotas: list[QuotaStatus]) -> list[QuotaStatus]:
    if len(quotas) <= QUOTAS_MAX:
        return quotas
    return heapq.nlargest(QUOTAS_MAX, quotas, key=lambda one: one.bytes_used / one.bytes_max)


def _by_state(c: ClusterStatus) -> Labelled:
    return [((state,), sum(agent.state == state for agent in c.agents)) for state in AGENT_STATES]


CLUSTER: tuple[Spec[ClusterStatus], ...] = (
    _gauge("margin", "How many more losses everything that is stored survives, and the namespace "
           "too; below 0 some data cannot be read.", lambda c: c.margin),
    _gauge("margin_hosts", "The same in hosts.", lambda c: c.margin_hosts),
    _gauge("data_shards", "m: data shards of a full stripe.", lambda c: c.data_shards),
    _gauge("parity_shards", "k: so many agents may die at once.", lambda c: c.parity_shards),
    _gauge("agents", "Agents by state.", _by_state, "state"),
    _gauge("agent_up", "1 if the agent serves, slow, draining or ending as it may be, else 0.",
           _agents(AgentStatus.is_there), "agent"),
    _gauge("agent_slow", "1 if the agent answers far later than the others.",
           _agents(lambda a: a.state == "slow"), "agent"),
    _gauge("agent_ends_in_seconds", "How long an agent has whose end is announced; below 0 if it "
           "should have ended.", lambda c: [
               ((a.slot,), a.ends_in_s) for a in c.agents if a.ends_in_s is not None], "agent"),
    _gauge("agent_unhosted", "1 if the agent is down and has lost its host.",
           lambda c: [((agent.slot,), agent.slot in c.unhosted) for agent in c.agents], "agent"),
    _gauge("voter_heard", "1 if the leader hears the voter and it has its memory, else 0.",
           _voters(lambda v: v.lag is not None), "agent"),
    _gauge("voter_lag_entries", "Entries of the log that the voter lacks, of those that are heard.",
           _voters(lambda v: v.lag), "agent"),
    _gauge("log_position", "Entries of the log that are committed.", lambda c: c.log.commit),
    _gauge("log_bytes", "What the log takes on the leader.", lambda c: c.log.bytes),
    _gauge("commits_per_second", "Commands of clients in the last five seconds, a second.",
           lambda c: c.commits_per_s),
    _gauge("stripes", "Stripes by health: of degraded ones shards are missing, lost ones cannot "
           "be read.", lambda c: [(("healthy",), c.stripes.healthy),
                                  (("degraded",), c.stripes.degraded),
                                  (("lost",), c.stripes.lost)], "health"),
    _gauge("class_margin", "How many more losses the stripes of that parity survive; below 0 some "
           "cannot be read.", _classes(lambda one: one.margin), "parity"),
    _gauge("class_stripes", "Stripes of that parity.", _classes(lambda one: one.stripes.total),
           "parity"),
    _gauge("class_lost_stripes", "Those of them that cannot be read.",
           _classes(lambda one: one.stripes.lost), "parity"),
    _gauge("thin_files", "Files in stripes of less parity than they ask for, until they are "
           "rewritten.", lambda c: c.files_thin),
    _gauge("stripes_freed", "Stripes that nothing names any more and that are still there.",
           lambda c: c.stripes_freed),
    _gauge("damaged_shards", "Shards that their holders know to be corrupt or missing.",
           lambda c: c.damaged_shards),
    _gauge("repair_left_stripes", "Stripes that are still to be repaired.",
           lambda c: c.repair.stripes_left),
    _gauge("repair_left_bytes", "Bytes of those stripes.", lambda c: c.repair.bytes_left),
    _gauge("repair_bytes_per_second", "How fast repair is.", lambda c: c.repair.bytes_per_s),
    _gauge("repair_waiting_stripes", "Stripes that wait for agents which may come back.",
           lambda c: c.repair.waiting),
    _gauge("repair_unprotectable_stripes", "Stripes that no agent has room for.",
           lambda c: c.repair.unprotectable),
    _gauge("repair_lost_stripes", "Stripes of which too few shards are left.",
           lambda c: c.repair.lost),
    _gauge("repair_at_stake_stripes", "Stripes that would be lost with the agents whose ends are "
           "announced.", lambda c: c.repair.at_stake),
    _gauge("balance_left_bytes", "Bytes that should move to agents with more room.",
           lambda c: c.balance.bytes_left),
    _gauge("balance_bytes_per_second", "How fast they move.", lambda c: c.balance.bytes_per_s),
    _gauge("balance_fill_ratio", "How full agents are, of what clients' data may take: the "
           "fullest, the mean, the emptiest.",
           lambda c: [(("fullest",), c.balance.fullest_share), (("mean",), c.balance.mean_share),
                      (("emptiest",), c.balance.emptiest_share)], "agent"),
    _gauge("upkeep_pace", "How fast agents scrub and the roll of shards is called, in times as "
           "fast as is set.", lambda c: c.upkeep.pace),
    _gauge("unsteady_agents", "Agents that came and went several times in ten minutes: new shards "
           "do not go there while others have room.", lambda c: sum(a.unsteady for a in c.agents)),
    _gauge("files", "Files.", lambda c: c.files),
    _gauge("directories", "Directories.", lambda c: c.directories),
    _gauge("files_unswept", "Files that were deleted with a directory and are not taken apart yet.",
           lambda c: c.files_unswept),
    _gauge("snapshots", "Snapshots.", lambda c: c.snapshots),
    _gauge("snapshots_only_bytes", "Bytes that only snapshots hold, as of the last look.",
           lambda c: c.bytes_only_snapshots),
    _gauge("logical_bytes", "Bytes of all files.", lambda c: c.bytes_logical),
    _gauge("stored_bytes", "What those take in all agents' memory.", lambda c: c.bytes_stored),
    _gauge("inline_bytes", "Bytes of files that lie in the namespace itself.",
           lambda c: c.bytes_inline),
    _gauge("namespace_bytes", "What the namespace weighs on each voter.",
           lambda c: c.bytes_namespace),
    _gauge("namespace_max_bytes", "How large the namespace may become now.",
           lambda c: c.bytes_namespace_max),
    _gauge("sessions", "Sessions of clients.", lambda c: c.sessions),
    _gauge("leases", "Checkpoints that applications write to, or did until lately.",
           lambda c: c.leases),
    _gauge("quota_used_bytes", f"What is at a path that has a quota. Of many only the {QUOTAS_MAX} "
           "fullest are shown.", _quotas(lambda one: one.bytes_used), "path"),
    _gauge("quota_max_bytes", "What may be there.", _quotas(lambda one: one.bytes_max), "path"),
    _gauge("tokens", "Tokens that were registered, revoked ones among them.", lambda c: c.tokens),
    _gauge("tier_attached", "1 if the cluster has a durable tier, else 0. Without one there are "
           "no other metrics of it.", lambda c: c.tier is not None),
    _gauge("tier_state", "1 for the state that the tier is in.",
           _tier(lambda t: [((state,), t.state == state) for state in TIER_STATES]), "state"),
    _gauge("tier_horizon", "The number of the last change that is in the tier.",
           _tier(lambda t: t.horizon)),
    _gauge("tier_lag_seconds", "How much would be lost with everything, in seconds.",
           _tier(lambda t: t.lag_s)),
    _gauge("tier_lag_bytes", "The same in bytes.", _tier(lambda t: t.lag_bytes)),
    _gauge("tier_lag_commands", "The same in commands.", _tier(lambda t: t.lag_commands)),
    _gauge("tier_lag_max_seconds", "The bound that commits are slowed down for: --lag-max.",
           _tier(lambda t: t.lag_max_s)),
    _gauge("tier_failing_seconds", "For how long no round to the tier has succeeded; 0 if they "
           "do.", _tier(lambda t: t.failing_s)),
    _gauge("tier_rounds", "Rounds to the tier that this leader has made.",
           _tier(lambda t: t.rounds)),
    _counter("tier_failed_rounds", "Rounds of this leader that failed.",
             _tier(lambda t: t.rounds_failed)),
    _gauge("tier_held_answers", "Answers that are held back until they are durable.",
           _tier(lambda t: t.held)),
    _gauge("tier_barrier_paths", "Paths that ask for durability=barrier.",
           _tier(lambda t: t.barriers)),
    _gauge("tier_lost_files", "Files that could not be read any more when the tier was to have "
           "them.", _tier(lambda t: t.files_lost)),
    _gauge("hydration_left_files", "Files whose bytes are in the tier alone.",
           _tier(lambda t: t.hydration.files_left)),
    _gauge("hydration_left_bytes", "Bytes of those files.",
           _tier(lambda t: t.hydration.bytes_left)),
    _gauge("hydration_bytes_per_second", "How fast they come back.",
           _tier(lambda t: t.hydration.bytes_per_s)),
    _gauge("hydration_damaged_files", "Files whose bytes in the tier are not what they were.",
           _tier(lambda t: t.hydration.damaged)),
    _gauge("eviction_state", "1 for the state that eviction is in; stuck: memory is full of what "
           "the tier may not have.",
           _eviction(lambda e: [((state,), e.state == state) for state in EVICTION_STATES]),
           "state"),
    _gauge("evicted_files", "Files that were evicted and are in the tier alone.",
           _eviction(lambda e: e.files)),
    _gauge("evicted_bytes", "Bytes of those files.", _eviction(lambda e: e.bytes)),
    _counter("evictions", "Files that this leader has evicted.",
             _eviction(lambda e: e.files_done)),
    _counter("eviction_bytes", "Bytes of those files.", _eviction(lambda e: e.bytes_done)),
    _gauge("tier_drill_sound", "1 if the last drill could restore the tier, else 0. Before the "
           "first one there are no metrics of drills.", _drill(lambda d: d.sound)),
    _gauge("tier_drill_timestamp_seconds", "When its result was taken down, since 1970.",
           _drill(lambda d: d.time_ms / 1000)),
    _gauge("tier_drill_problems", "What it found wrong.", _drill(lambda d: d.problems)),
    _gauge("tier_drill_duration_seconds", "How long it took.", _drill(lambda d: d.took_s)),
    _gauge("tier_drill_read_files", "Files that it read.", _drill(lambda d: d.files_read)),
    _gauge("tier_drill_serves_seconds", "After which a restored cluster would serve.",
           _drill(lambda d: d.serves_s)),
    _gauge("tier_drill_whole_seconds", "After which it would have all bytes in memory.",
           _drill(lambda d: d.whole_s)),
)  # fmt: skip


Reading = tuple[Spec[Any], Any]
"""A metric and what its source said of it."""


def readings(specs: Iterable[Spec[S]], source: S) -> Iterator[Reading]:
    """Each metric with its values; those that have none are left out."""
    for spec in specs:
        value = spec.read(source)
        if value is not None:
            yield spec, value


def lines(reading: Reading) -> list[str]:
    """A metric in Prometheus' text format. The library's own way to write it takes three times
    as long, on a loop that others wait for."""
    spec, value = reading
    found = [_header(spec)]
    if spec.kind == "histogram":
        found += _histogram_lines(spec.name, value)
    elif not spec.labels:
        found.append(f"{spec.name} {_number(value)}")
    else:
        found += [f"{spec.name}{_labels(spec.labels, of)} {_number(one)}" for of, one in value]
    return found


@cache
def _header(spec: Spec[Any]) -> str:
    return f"# HELP {spec.name} {spec.help}\n# TYPE {spec.name} {spec.kind}"


@lru_cache(maxsize=4096)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = (
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)
    )
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


def _histogram_lines(name: str, buckets: Buckets) -> Iterator[str]:
    counts, sum_s = buckets
    upto = 0
    for edge, count in zip(_EDGES, counts or [0] * len(_EDGES), strict=True):
        upto += count
        yield f'{name}_bucket{{le="{edge}"}} {upto}'
    yield f"{name}_sum {sum_s!r}"
    yield f"{name}_count {upto}"


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_EDGES = (*map(repr, EDGES_S), "+Inf")
