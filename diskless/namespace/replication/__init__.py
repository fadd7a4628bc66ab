"""Viewstamped Replication for voters whose memory is their only storage.

`VoterMachine` is a pure state machine: messages, ticks and commands go in, effects come
out. docs/replication.md has the protocol on one page and says why it is safe.
"""

from diskless.namespace.replication.core import Status
from diskless.namespace.replication.effects import (
    Effect,
    HandedOver,
    Rejected,
    RejectReason,
    Reply,
    Restored,
    RoleChanged,
    Send,
)
from diskless.namespace.replication.machine import NamespaceMachine, StateMachine
from diskless.namespace.replication.settings import Limits, Timing
from diskless.namespace.replication.voter import ReplicaStatus, VoterMachine

__all__ = [
    "Effect",
    "HandedOver",
    "Limits",
    "NamespaceMachine",
    "RejectReason",
    "Rejected",
    "ReplicaStatus",
    "Reply",
    "Restored",
    "RoleChanged",
    "Send",
    "StateMachine",
    "Status",
    "Timing",
    "VoterMachine",
]
