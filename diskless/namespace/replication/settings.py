"""Times and limits of the replication protocol. All times are milliseconds."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When to act. Every time is measured by the voter's own monotonic clock.

    Safety rests on what docs/replication.md assumes of these clocks over one lease: they
    run apart by less than the fraction `drift_max`, and no leader stands still without
    any clock of its machine showing it. Nothing else here affects safety.
    """

    failure_timeout_ms: int = 1000
    """Silence after which a voter gives its leader up."""
    lease_ms: int = 500
    """How long those who answer a heartbeat wait for its leader, from when it was sent."""
    heartbeat_ms: int = 100
    slow_ms: int = 50
    """A leader whose rounds take longer finds out whether another one's would not."""
    drift_max: float = 0.02

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ms < self.lease_ms <= self.failure_timeout_ms
        assert 0 <= self.drift_max < 1

    @property
    def skew_ms(self) -> int:
        """How much a machine's clocks may disagree before a leader there gives its lease up:
        more than a busy one takes from reading the first to reading the second."""
        return max(self.lease_ms // 20, 2)

    @property
    def read_ms(self) -> int:
        """How long a leader serves reads after it sent what was answered: the lease, less
        the longest pause that its clocks may have hidden from it."""
        return self.lease_ms - 2 * self.skew_ms

    @property
    def promise_ms(self) -> int:
        """How long a voter that answered a heartbeat joins no view change.

        Longer than the lease by the drift, and by 2 ms because both clocks are read
        in whole milliseconds.
        """
        return math.ceil(self.lease_ms * (1 + self.drift_max) / (1 - self.drift_max)) + 2

    @property
    def retry_ms(self) -> int:
        """A view change that takes longer than this moves on to the next leader."""
        return max(self.failure_timeout_ms // 4, 1)

    @property
    def resend_ms(self) -> int:
        return self.heartbeat_ms

    @property
    def late_ms(self) -> int:
        """A follower looks around if it has not heard its leader for so long."""
        return self.heartbeat_ms * 5 // 4

    @property
    def stall_ms(self) -> int:
        """A tick that comes this late shows that this process stood still itself."""
        return self.failure_timeout_ms // 4


@dataclass(frozen=True, kw_only=True)
class Limits:
    rounds_in_flight_max: int = 4
    gather_ms_max: int = 5
    """A round that is not answered after this no longer holds the next one back."""
    batch_bytes_max: int = 1 << 20
    """Of the commands of one Prepare, and of the entries of one transfer message; one
    larger command goes alone."""
    pending_commands_max: int = 16_384
    pending_bytes_max: int = 64 << 20
    """Commands that wait for a round; beyond this they are rejected."""
    log_entries_max: int = 100_000
    log_bytes_max: int = 64 << 20
    """Beyond this the log is not kept for voters that are silent, and beyond twice
    this not for any that lag: they get a snapshot."""
    apply_commands_max: int = 256
    """Commands applied for one event, so that a backlog does not stall the caller."""
    unapplied_entries_max: int = 32
    unapplied_bytes_max: int = 8 << 10
    """A follower gathers so many committed entries with one command of this size each, before it
    applies them; until the next heartbeat at most."""
    backlog_entries_max: int = 50_000
    """Entries that a voter leaves unapplied while others copy its state; of twice `log_bytes_max`
    at most."""
