"""The state machine behind a replica: what the protocol needs of it, and ours.

The protocol never lets a machine change while an iterator of `snapshot` is in use: a
voter that gives its state away keeps logging and voting but applies nothing until
the copy is done. So a snapshot is a consistent cut without copying or versions, and
its chunks are made on demand.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from diskless.namespace import commands as c
from diskless.namespace.events import Audit, EventLog
from diskless.namespace.journal import Journal
from diskless.namespace.snapshot import Restorer, snapshot
from diskless.namespace.state import NamespaceState


class StateMachine(Protocol):
    def apply(self, op: int, time_ms: int, elapsed_ms: int, command: bytes) -> Any:
        """Does one committed command; deterministic. Several may share an `op`."""

    def snapshot(self) -> Iterator[bytes]:
        """The whole state in chunks of bounded size, each quick to make."""

    def restore(self, chunk: bytes) -> None:
        """Takes the next chunk, on a machine that has applied nothing."""


class NamespaceMachine:
    """The namespace as a replicated state machine. Invalid bytes raise: a bug of ours."""

    def __init__(self, audit: Audit | None = None, *, parity_shards: int = 0) -> None:
        """`audit` is told of every event. `parity_shards` is the cluster's k."""
        self.state = NamespaceState(parity_shards=parity_shards)
        self.events = EventLog(audit)
        self.journal = self.state.journal = Journal()
        self._who_of = self.state.sessions.who
        self._restorer: Restorer | None = None

    def apply(self, op: int, time_ms: int, elapsed_ms: int, command: bytes) -> tuple[c.Result, ...]:
        if self._restorer is not None:
            self._restorer = None
            self.events.restored(self.state.op)
        decoded = c.decode(command)
        results = self.state.apply(decoded, now_ms=time_ms, elapsed_ms=elapsed_ms, op=op)
        self.events.note(
            op,
            decoded,
            results,
            time_ms=time_ms,
            elapsed_ms=elapsed_ms,
            who_of=self._who_of,
        )
        return results

    def snapshot(self) -> Iterator[bytes]:
        return snapshot(self.state)

    def restore(self, chunk: bytes) -> None:
        if self._restorer is None:
            self._restorer = Restorer(self.state)
        self._restorer.take(chunk)
        self.journal.restart(self.state.tier.change)
