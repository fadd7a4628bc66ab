"""A bar on the terminal for work that is done when nothing of it is left."""

import sys
from types import TracebackType
from typing import Any


class Meter:
    """Shows nothing where there is no terminal. Use it in a `with` block."""

    def __init__(self, title: str, *, enabled: bool) -> None:
        self._bar: Any = None
        self._most = 0
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=None)

    def left(self, count: int) -> None:
        """How much is left now; the most that ever was is the whole."""
        self._most = max(self._most, count)
        if self._bar is not None:
            self._bar.update(self._task, total=self._most, completed=self._most - count)

    def __enter__(self) -> "Meter":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
