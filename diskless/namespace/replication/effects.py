"""What a replica asks of its driver. The order of a list of effects matters."""

from collections.abc import Hashable
from enum import Enum
from typing import Any

from msgspec import Struct

from diskless.namespace.replication.messages import Message

RequestId = Hashable


class RejectReason(Enum):
    NOT_LEADER = "not leader"
    """Not executed. `leader` is who leads, as far as this voter knows."""
    OVERLOADED = "overloaded"
    """Not executed: too many commands wait already."""
    NO_QUORUM = "no quorum"
    """Not executed: this leader hears too few voters to commit anything."""
    UNKNOWN = "outcome unknown"
    """The leader changed while the command was on its way: it may still be executed.
    Ask the new leader again: the table of answers makes that safe."""


class Send(Struct, frozen=True, gc=False):
    """The same message for one or more voters; it may be lost, late, or doubled."""

    to: tuple[int, ...]
    message: Message


class Reply(Struct, frozen=True):
    """A command was committed and applied; `results` is what the machine answered."""

    request_id: RequestId
    results: Any
    op: int
    voters: tuple[int, ...]
    """Those that had it in their logs when it was committed: the leader, and all that answered."""


class Rejected(Struct, frozen=True):
    request_id: RequestId
    reason: RejectReason
    leader: int | None = None


class RoleChanged(Struct, frozen=True):
    """`leader` is None while a view change or a recovery is under way."""

    view: int
    leads: bool
    leader: int | None


class Restored(Struct, frozen=True):
    """`VoterMachine.machine` is a new object, restored from another voter's snapshot."""

    op: int


class HandedOver(Struct, frozen=True):
    """This leader leaves, because the voter `heir` would reach a quorum much sooner."""

    heir: int
    trip_ms: int
    heir_trip_ms: int


Effect = Send | Reply | Rejected | RoleChanged | Restored | HandedOver
