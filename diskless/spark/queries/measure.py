"""What a cluster knows of a query and of itself, for advice: notes, files, events, status."""

import time
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from diskless.advice.records import KINDS, Batches, Failures, read_events, read_notes
from diskless.advice.settings import Cluster, StateFiles, TierCosts
from diskless.checkpoint import names
from diskless.checkpoint.picture import Picture
from diskless.client import Client
from diskless.errors import CannotReturn, NotFound, UnknownFormat
from diskless.model import ClusterStatus, TierReport
from diskless.notes import Noted
from diskless.spark.queries.access import Search, take_picture

EVENTS_MAX = 20_000
"""Of agents that come, go and are repaired: the newest."""


@dataclass(frozen=True)
class MeasuredQuery:
    path: str
    batches: Batches
    state: StateFiles | None
    """None if it has none, or one whose files are not known."""


@dataclass(frozen=True)
class MeasuredCluster:
    cluster: Cluster
    failures: Failures | None
    """None if the log cannot be seen: a token that is bound to paths sees nothing of agents."""
    looked_s: float
    """How far back the log reaches, within what was asked for."""


def measure_queries(client: Client, top: str) -> list[MeasuredQuery]:
    """The queries whose checkpoints are at or below a path. Raises NotFound."""
    client.stat(top)
    found = []
    for path in Search(client, top).checkpoints:
        try:
            picture = take_picture(client, path)
        except (NotFound, CannotReturn):
            continue  # It went while we looked, or has no batch yet.
        noted = client.batch_notes(path)
        mine = noted.notes if _is_of(picture, noted) else []
        found.append(MeasuredQuery(path, read_notes(mine), read_state(picture)))
    return found


def _is_of(picture: Picture, noted: Noted) -> bool:
    """Whether notes are of the query that the checkpoint is of, and not of one before it."""
    try:
        return noted.query == picture.query_id
    except UnknownFormat:
        return False


def read_state(picture: Picture) -> StateFiles | None:
    """What its files say of the state's size, and of what a batch changes in it."""
    whole, changed = 0, dict[int, int]()
    for versions in picture.versions.values():
        newest, size = -1, 0
        for file in chain.from_iterable(versions.values()):
            if file.kind not in names.WHOLE:
                changed[file.version] = changed.get(file.version, 0) + picture.files[file.path].size
            elif file.version > newest:
                newest, size = file.version, picture.files[file.path].size
        whole += size
    if not picture.versions:
        return None
    mean = fmean(changed.values()) if changed else 0.0
    return StateFiles(whole_bytes=whole, changed_bytes=mean, batches=len(changed))


def measure_cluster(client: Client, *, since_s: float) -> MeasuredCluster:
    """The cluster, and how its agents have failed in so long a time, as far as its log reaches."""
    status = client.status()
    now_ms = status.time_ms or int(1000 * time.time())
    since_ms = max(now_ms - int(1000 * since_s), 0)
    page = client.look_back(KINDS, since_ms=since_ms, limit=EVENTS_MAX)
    if not page.oldest_ms:
        return MeasuredCluster(_cluster(status), None, 0.0)
    begins_ms = max(page.oldest_ms, since_ms)
    hosts = {agent.slot: agent.host for agent in status.agents if agent.host}
    failures = read_events(page.events, hosts, since_ms=begins_ms, now_ms=now_ms)
    return MeasuredCluster(_cluster(status), failures, max(now_ms - begins_ms, 0) / 1000)


def _cluster(status: ClusterStatus) -> Cluster:
    hosts = [agent.host for agent in status.agents if agent.host]
    fullest = max((hosts.count(host) for host in set(hosts)), default=0)
    return Cluster(
        data_shards=status.data_shards,
        parity_shards=status.parity_shards,
        agents=len(status.agents),
        agents_per_host=fullest if len(set(hosts)) > 1 else 0,
        memory_bytes=max((agent.bytes_max for agent in status.agents), default=0),
        tier=_tier_costs(status.tier) if status.tier is not None else None,
    )


def _tier_costs(tier: TierReport) -> TierCosts:
    return TierCosts(
        lag_s=tier.lag_s,
        lag_max_s=tier.lag_max_s,
        rounds=tier.rounds,
        requests=tier.requests,
        bytes_put=tier.bytes_put,
    )
