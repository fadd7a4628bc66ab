"""The content of `diskless status`: a `ClusterStatus`, made by the leader."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from diskless.agent.counts import BUCKETS
from diskless.agent.leading.drain import Drain
from diskless.agent.leading.historian import Historian
from diskless.agent.leading.keeper import Keeper
from diskless.agent.leading.repairer import Repairer
from diskless.agent.leading.rollcall import SLICE_STRIPES
from diskless.agent.leading.upkeep import Upkeep
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.config import ClusterSettings
from diskless.model import (
    AgentInfo,
    AgentStatus,
    ClassStatus,
    ClusterStatus,
    CopyStatus,
    LogStatus,
    LoopLag,
    QuotaStatus,
    StripeCounts,
    TrafficCounts,
    UpkeepStatus,
    VoterStatus,
    slot_name,
)
from diskless.namespace import quotas
from diskless.namespace.health import Tally, hosts_to_lose
from diskless.namespace.replication import ReplicaStatus
from diskless.namespace.state import NamespaceState

RATE_WINDOW_MS = 5000
"""The window of the commit rate."""


class Reporter:
    def __init__(
        self,
        *,
        settings: ClusterSettings,
        cluster_id: str,
        slot: int,
        replica: Replica,
        pulses: Mapping[int, Pulse],
        repairer: Repairer,
        keeper: Keeper,
        homeless: Callable[[], Mapping[int, str]],
        drain: Drain,
        upkeep: Upkeep,
        historian: Historian,
    ) -> None:
        """`homeless` returns, for slots that have lost their nodes, what happens to them."""
        self._settings = settings
        self._cluster_id = cluster_id
        self._slot = slot
        self._replica = replica
        self._pulses = pulses
        self._repairer = repairer
        self._keeper = keeper
        self._homeless = homeless
        self._drain = drain
        self._upkeep = upkeep
        self._historian = historian

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    def report(self) -> ClusterStatus:
        settings, state, k = self._settings, self._state, self._settings.parity_shards
        tally = self._tally()
        replica = self._replica.status()
        assert replica is not None
        voters = self._voters(replica)
        hosts = self._voter_hosts(voters)
        return ClusterStatus(
            name=settings.name,
            cluster_id=self._cluster_id,
            data_shards=settings.data_shards,
            parity_shards=settings.parity_shards,
            leader=slot_name(self._slot),
            margin=min(tally.margin(k), self._voter_margin(hosts)),
            margin_hosts=min(tally.margin_hosts(k), self._voter_margin_hosts(hosts)),
            time_ms=replica.time_ms,
            view=self._replica.view,
            voters=voters,
            log=LogStatus(
                op=replica.op,
                commit=replica.commit,
                entries=replica.log_entries,
                bytes=replica.log_bytes,
            ),
            commits_per_s=self._commits_per_s(),
            agents=self._agents(),
            unhosted=self._unhosted(),
            stripes=StripeCounts(**tally.standings),
            loop_lag=_lag(self._pulses.get(self._slot)),
            repair=self._repairer.report(),
            balance=self._repairer.balance(),
            upkeep=self._upkept(),
            files=state.tree.files,
            files_unswept=state.doomed.files,
            directories=state.tree.directories,
            snapshots=len(state.history),
            bytes_only_snapshots=self._keeper.bytes_alone if state.history else 0,
            bytes_logical=state.bytes_logical,
            bytes_stored=state.ledger.stored_bytes + settings.voters * state.bytes_inline,
            bytes_inline=state.bytes_inline,
            bytes_namespace=state.bytes_used,
            bytes_namespace_max=state.bytes_max,
            stripes_freed=len(state.ledger.freed_ms),
            sessions=len(state.sessions),
            leases=len(state.leases.by_path),
            grpc_messages=sum(pulse.messages_sent for pulse in self._pulses.values()),
            damaged_shards=len(self._repairer.damaged()),
            corrupt_shards_seen=sum(p.corrupt_shards_seen for p in self._pulses.values()),
            tokens=len(state.tokens),
            refused=self._refused(),
            audit_dropped=sum(pulse.audit_dropped for pulse in self._pulses.values()),
            traffic=self._traffic(),
            copies=self._copies(),
            tier=self._drain.report(self._pulses.values()),
            classes=[_class(tally, parity) for parity in tally.classes],
            quotas=self._quotas(),
            files_thin=len(state.thin),
        )

    def _upkept(self) -> UpkeepStatus:
        tuning, pace = self._settings.tuning, self._upkeep.pace
        thinning = self._historian.thinning
        return UpkeepStatus(
            pace=pace.factor,
            pace_why=pace.why,
            scrub_bytes_per_s=int(tuning.scrub_bytes_per_s * pace.factor),
            roll_stripes_per_s=SLICE_STRIPES * pace.factor / tuning.janitor_interval_s,
            thin_s=thinning.seconds,
            thin_why=thinning.why,
        )

    def _quotas(self) -> list[QuotaStatus]:
        return [
            QuotaStatus(path=path, bytes_max=most, bytes_used=quotas.used(self._state, path))
            for path, most in sorted(self._state.policies.quotas.items())
        ]

    def _traffic(self) -> TrafficCounts:
        counts = [pulse.traffic for pulse in self._pulses.values()]
        buckets = [one.commits for one in counts if len(one.commits) == BUCKETS]
        return TrafficCounts(
            tuple(map(sum, zip(*buckets, strict=True))),
            sum(one.bytes_written for one in counts),
            sum(one.bytes_read for one in counts),
        )

    def _copies(self) -> CopyStatus:
        counts = [pulse.copies for pulse in self._pulses.values()]
        return CopyStatus(
            bytes_max=sum(one.bytes_max for one in counts),
            bytes=sum(pulse.memory.get("copies", 0) for pulse in self._pulses.values()),
            hits=sum(one.hits for one in counts),
            misses=sum(one.misses for one in counts),
            bytes_hit=sum(one.bytes_hit for one in counts),
            bytes_missed=sum(one.bytes_missed for one in counts),
            corrupt=sum(one.corrupt for one in counts),
        )

    def _refused(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for pulse in self._pulses.values():
            counts.update(pulse.refused)
        return dict(counts)

    def _unhosted(self) -> dict[str, str]:
        """Only slots that are still down: an agent may just have returned."""
        agents = self._state.agents
        return {slot_name(s): why for s, why in self._homeless().items() if not agents[s].up}

    def _slots(self) -> int:
        """The slots from the start, and those added since."""
        return max([self._settings.agents, *(slot + 1 for slot in self._state.agents)])

    def _voters(self, status: ReplicaStatus) -> list[VoterStatus]:
        """The voters as the leader sees them."""
        return [
            VoterStatus(
                slot=slot_name(slot),
                role=self._role(slot, lag),
                lag=lag,
                clock_skew_ms=skew if lag is not None else None,
            )
            for slot, (lag, skew) in enumerate(zip(status.lags, status.clock_skews_ms, strict=True))
        ]

    def _role(self, slot: int, lag: int | None) -> str:
        if slot == self._slot:
            return "leader"
        return "gone" if lag is None else "follower"

    def _voter_margin(self, hosts: list[str]) -> int:
        """How many more voters may be lost before none can commit.

        Never negative: a majority has just confirmed this leader, even if the roster still shows
        a returned voter as down.
        """
        return max(len(hosts) - (self._settings.parity_shards + 1), 0)

    def _voter_margin_hosts(self, hosts: list[str]) -> int:
        """The same in hosts: the namespace and all inline bytes are lost with the voters."""
        needed = self._settings.parity_shards + 1
        return max(hosts_to_lose(hosts, needed), 0)

    def _voter_hosts(self, voters: Sequence[VoterStatus]) -> list[str]:
        """The hosts of the voters that are up and have their state."""
        agents = self._state.agents
        return [
            agents[slot].host
            for slot, voter in enumerate(voters)
            if voter.lag is not None and slot in agents and agents[slot].up
        ]

    def _commits_per_s(self) -> float:
        elapsed_ms = self._replica.elapsed_ms()
        rate = self._replica.events.per_second(elapsed_ms=elapsed_ms, window_ms=RATE_WINDOW_MS)
        return round(rate, 1)

    def _agents(self) -> list[AgentStatus]:
        placed, unsteady = self._state.health.shards_placed, self._repairer.unsteady()
        return [self._agent(slot, placed[slot], slot in unsteady) for slot in range(self._slots())]

    def _agent(self, slot: int, shards_placed: int, unsteady: bool) -> AgentStatus:
        info = self._state.agents.get(slot)
        pulse = self._pulses.get(slot)
        if info is None:
            return AgentStatus(slot=slot_name(slot), state="starting")
        return AgentStatus(
            slot=slot_name(slot),
            state=_state(info),
            pid=info.pid,
            node=info.node,
            host=info.host,
            address=info.address,
            incarnation=info.incarnation,
            shards=pulse.shards if pulse else 0,
            bytes_used=pulse.bytes_used if pulse else 0,
            bytes_max=self._settings.memory_bytes,
            memory=pulse.memory if pulse else {},
            http=pulse.http if pulse and info.up else "",
            shards_placed=shards_placed,
            bytes_placed=self._state.health.bytes_placed[slot],
            ends_in_s=self._ends_in_s(info) if info.ends_ms else None,
            ends_by=info.notice.partition(" ")[0] if info.ends_ms else "",
            loop_lag=_lag(pulse),
            unsteady=unsteady,
        )

    def _ends_in_s(self, info: AgentInfo) -> float:
        return round((info.ends_ms - self._replica.elapsed_ms()) / 1000, 1)

    def _tally(self) -> Tally:
        """Counts all stripes, with the damage that agents have reported."""
        ledger, damaged = self._state.ledger, self._repairer.damaged()
        self._state.health.settle()
        ill = ledger.live_among(stripe for stripe, _ in damaged)
        return self._state.health.tally(damaged, ((entry.group, entry.stripe) for entry in ill))


def _class(tally: Tally, parity_shards: int) -> ClassStatus:
    return ClassStatus(
        parity_shards=parity_shards,
        margin=tally.margin_of(parity_shards),
        stripes=StripeCounts(**tally.standings_of(parity_shards)),
    )


def _lag(pulse: Pulse | None) -> LoopLag:
    return pulse.loop_lag if pulse is not None else LoopLag()


def _state(info: AgentInfo) -> str:
    if not info.up:
        return "down"
    if info.ends_ms:
        return "ending"
    return "draining" if info.draining else "slow" if info.slow else "up"
