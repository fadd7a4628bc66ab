"""What `run` needs of traffic."""

from typing import NamedTuple, Protocol

from diskless.chaos.verdict import Findings


class News(NamedTuple):
    """What a workload did since it was last asked."""

    done: int
    commits_ms: list[float]
    """How long each commit took."""
    errors: int = 0


class Workload(Protocol):
    unit: str
    """What is counted: operations, rows."""

    def prepare(self) -> None:
        """Whatever takes long and is no part of the run."""

    def start(self) -> None:
        """Begins, on threads of its own."""

    def news(self) -> News: ...

    def stop(self) -> None:
        """Ends the traffic. The cluster has healed by then, or never will."""

    def finish(self) -> Findings:
        """Judges what happened, after `stop`."""

    def clean_up(self, *, keep: bool) -> None:
        """Ends what `prepare` began, and removes its files unless they are evidence."""
