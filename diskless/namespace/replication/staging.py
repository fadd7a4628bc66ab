"""What is under way between a voter that lacks something and one that has it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from diskless.namespace.replication.machine import StateMachine
from diskless.namespace.replication.messages import Entry

NEVER = -(1 << 62)


class Purpose(Enum):
    LAG = "lag"
    """A follower missed more of its view's log than its leader still has."""
    FOLLOW = "follow"
    """A voter must have the log that a view begins with, before it may enter it."""
    LEAD = "lead"
    """A new leader gets the log that its view begins with."""
    RECOVER = "recover"


@dataclass(slots=True)
class Catchup:
    """The log of `view` after `kept`, of which at least `target` entries are needed.

    `kept` is what this voter has itself, or, with a complete snapshot, where that ends.
    """

    purpose: Purpose
    view: int
    source: int
    kept: int
    target: int
    entries: list[Entry] = field(default_factory=list)
    entries_bytes: int = 0
    commit: int = 0
    attempt: int = 0
    asked_ms: int = NEVER
    tries: int = 0
    # A snapshot on its way (donor is set) or complete (machine alone is):
    donor: int | None = None
    machine: StateMachine | None = None
    nonce: int = 0
    index: int = 0
    floor: int = 0
    snapshot_op: int = 0
    own: int = 0  # what `kept` was before a snapshot was complete
    base_time_ms: int = 0
    base_elapsed_ms: int = 0

    @property
    def last(self) -> int:
        return self.kept + len(self.entries)


@dataclass(slots=True)
class OutgoingSnapshot:
    """A snapshot that another voter is copying from this one."""

    nonce: int
    view: int
    op: int
    time_ms: int
    elapsed_ms: int
    chunks: Iterator[bytes]
    index: int
    data: bytes
    done: bool
    used_ms: int
