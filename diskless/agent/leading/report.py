"""What `diskless status` says: a `ClusterStatus`, made by the leader."""

from collections import Counter
from collections.abc import Callable, Mapping

from diskless.agent.leading.drain import Drain
from diskless.agent.leading.keeper import Keeper
from diskless.agent.leading.repairer import Repairer
from diskless.agent.ports import Pulse
from diskless.agent.replica import Replica
from diskless.config import ClusterSettings
from diskless.model import (
    AgentInfo,
    AgentStatus,
    ClusterStatus,
    LogStatus,
    LoopLag,
    StripeCounts,
    VoterStatus,
    slot_name,
)
from diskless.namespace.health import Tally, hosts_to_lose
from diskless.namespace.state import NamespaceState

RATE_WINDOW_MS = 5000
"""How far back the rate of commits is counted."""


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
    ) -> None:
        """`homeless` says of slots that have lost their nodes what becomes of them."""
        self._settings = settings
        self._cluster_id = cluster_id
        self._slot = slot
        self._replica = replica
        self._pulses = pulses
        self._repairer = repairer
        self._keeper = keeper
        self._homeless = homeless
        self._drain = drain

    @property
    def _state(self) -> NamespaceState:
        return self._replica.state

    def report(self) -> ClusterStatus:
        settings, state, k = self._settings, self._state, self._settings.parity_shards
        tally = self._tally()
        return ClusterStatus(
            name=settings.name,
            cluster_id=self._cluster_id,
            data_shards=settings.data_shards,
            parity_shards=settings.parity_shards,
            leader=slot_name(self._slot),
            margin=min(tally.margin(k), self._voter_margin()),
            margin_hosts=min(tally.margin_hosts(k), self._voter_margin_hosts()),
            view=self._replica.view,
            voters=self._voters(),
            log=self._log(),
            commits_per_s=self._commits_per_s(),
            agents=[self._agent(slot) for slot in range(self._slots())],
            unhosted=self._unhosted(),
            stripes=StripeCounts(**tally.standings),
            loop_lag=_lag(self._pulses.get(self._slot)),
            repair=self._repairer.progress.report(),
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
            grpc_messages=sum(pulse.messages_sent for pulse in self._pulses.values()),
            damaged_shards=len(self._repairer.damaged()),
            corrupt_shards_seen=sum(p.corrupt_shards_seen for p in self._pulses.values()),
            tokens=len(state.tokens),
            refused=self._refused(),
            audit_dropped=sum(pulse.audit_dropped for pulse in self._pulses.values()),
            tier=self._drain.report(self._pulses.values()),
        )

    def _refused(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for pulse in self._pulses.values():
            counts.update(pulse.refused)
        return dict(counts)

    def _unhosted(self) -> dict[str, str]:
        """What was said of slots that are still down: an agent may just have returned."""
        agents = self._state.agents
        return {slot_name(s): why for s, why in self._homeless().items() if not agents[s].up}

    def _slots(self) -> int:
        """Those that there were at the start, and those that were added."""
        return max([self._settings.agents, *(slot + 1 for slot in self._state.agents)])

    def _voters(self) -> list[VoterStatus]:
        """The voters as the leader sees them."""
        status = self._replica.status()
        assert status is not None
        return [
            VoterStatus(slot=slot_name(slot), role=self._role(slot, lag), lag=lag)
            for slot, lag in enumerate(status.lags)
        ]

    def _role(self, slot: int, lag: int | None) -> str:
        if slot == self._slot:
            return "leader"
        return "gone" if lag is None else "follower"

    def _voter_margin(self) -> int:
        """How many more voters may be lost before none can commit.

        Never negative: a majority has just confirmed who leads, or nobody could tell this,
        whatever the roster says yet of one that is back.
        """
        return max(len(self._voter_hosts()) - (self._settings.parity_shards + 1), 0)

    def _voter_margin_hosts(self) -> int:
        """As that, in hosts: the namespace, and all inline bytes, are lost with its voters."""
        needed = self._settings.parity_shards + 1
        return max(hosts_to_lose(self._voter_hosts(), needed), 0)

    def _voter_hosts(self) -> list[str]:
        """Where the voters are that live and have their memory."""
        agents = self._state.agents
        return [
            agents[slot].host
            for slot, voter in enumerate(self._voters())
            if voter.lag is not None and slot in agents and agents[slot].up
        ]

    def _log(self) -> LogStatus:
        status = self._replica.status()
        assert status is not None
        return LogStatus(
            op=status.op, commit=status.commit, entries=status.log_entries, bytes=status.log_bytes
        )

    def _commits_per_s(self) -> float:
        elapsed_ms = self._replica.elapsed_ms()
        rate = self._replica.events.per_second(elapsed_ms=elapsed_ms, window_ms=RATE_WINDOW_MS)
        return round(rate, 1)

    def _agent(self, slot: int) -> AgentStatus:
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
            shards_placed=self._state.health.shards_placed[slot],
            loop_lag=_lag(pulse),
        )

    def _tally(self) -> Tally:
        """All stripes, counted, with the damage that agents have reported."""
        ledger, damaged = self._state.ledger, self._repairer.damaged()
        self._state.health.settle()
        ill = ledger.live_among(stripe for stripe, _ in damaged)
        return self._state.health.tally(damaged, ((entry.group, entry.stripe) for entry in ill))


def _lag(pulse: Pulse | None) -> LoopLag:
    return pulse.loop_lag if pulse is not None else LoopLag()


def _state(info: AgentInfo) -> str:
    if not info.up:
        return "down"
    return "draining" if info.draining else "slow" if info.slow else "up"
