"""A voter as an agent sets it up: its times, its limits, and what it takes of the memory."""

import random

from diskless.agent.audit import AuditFile
from diskless.config import ClusterSettings
from diskless.namespace import replication as vr
from diskless.namespace import weights

LOG_SHARE = 1 / 8
PENDING_SHARE = 1 / 16
"""The shares of an agent's memory that the log may take for a silent voter, and that commands may
take that wait for a round. The protocol's own limits apply if they are lower."""


def make_voter(slot: int, settings: ClusterSettings, audit: AuditFile | None) -> vr.VoterMachine:
    """`audit` is told of every event."""
    return vr.VoterMachine(
        slot=slot,
        voters=settings.voters,
        machine=lambda: vr.NamespaceMachine(audit, parity_shards=settings.parity_shards),
        random=random.Random(),
        timing=_timing(settings.tuning.failure_timeout_s),
        limits=_limits(settings.memory_bytes),
    )


def _timing(failure_timeout_s: float) -> vr.Timing:
    """The protocol's times, in proportion to the failure timeout."""
    timeout_ms = max(int(failure_timeout_s * 1000), 40)
    return vr.Timing(
        failure_timeout_ms=timeout_ms,
        lease_ms=timeout_ms // 2,
        heartbeat_ms=max(timeout_ms // 10, 10),
        slow_ms=min(timeout_ms // 8, vr.Timing.slow_ms),
    )


def _limits(memory_bytes: int) -> vr.Limits:
    usual = vr.Limits()
    return vr.Limits(
        log_bytes_max=min(int(LOG_SHARE * memory_bytes), usual.log_bytes_max),
        pending_bytes_max=min(int(PENDING_SHARE * memory_bytes), usual.pending_bytes_max),
    )


class VoterWeight:
    """What an agent's part of the namespace takes in memory; nothing without a voter."""

    def __init__(self, voter: vr.VoterMachine | None, audit: AuditFile | None) -> None:
        self._voter = voter
        self._audit = audit

    def by_kind(self) -> dict[str, int]:
        if self._voter is None:
            return {}
        machine = namespace_of(self._voter)
        found = weights.by_kind(machine.state)
        found["log"] = self._voter.bytes_held() + self._staged(self._voter)
        found["events"] = self._events(machine)
        found["journal"] = machine.journal.bytes_used
        return found

    def totals(self) -> tuple[int, int]:
        """What `by_kind` returns, in two numbers: what lasts, and what is released by itself."""
        if self._voter is None:
            return 0, 0
        machine = namespace_of(self._voter)
        return machine.state.bytes_used, (
            self._voter.bytes_held()
            + self._staged(self._voter)
            + self._events(machine)
            + machine.journal.bytes_used
        )

    def _staged(self, voter: vr.VoterMachine) -> int:
        """Of the state that another voter is sending."""
        staged = voter.staged()
        return staged.state.bytes_used if isinstance(staged, vr.NamespaceMachine) else 0

    def _events(self, machine: vr.NamespaceMachine) -> int:
        waiting = self._audit.bytes_used if self._audit is not None else 0
        return machine.events.bytes_used + waiting


def namespace_of(voter: vr.VoterMachine) -> vr.NamespaceMachine:
    """The voter's own. It is a new object after a restore from a snapshot."""
    machine = voter.machine
    assert isinstance(machine, vr.NamespaceMachine)
    return machine
