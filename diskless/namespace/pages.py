"""A walk over directories in each other, in pages, over a state that changes in between.

Where a page ends is told by a path, the cursor: all up to it, in order, has been seen. With a
`/` at its end it is a directory that was entered and of which nothing has been seen.
"""

from collections.abc import Callable, Iterator
from typing import Any


class Position:
    """Where a walk is. A thing is a directory, or several that are walked in step."""

    def __init__(self, enter: Callable[[Any, str], Iterator[Any]]) -> None:
        """`enter` gives the steps in a thing beyond a name; each begins with a name."""
        self.cursor = ""
        self.frames: list[tuple[str, Iterator[Any]]] = []
        self._enter = enter

    def next(self) -> Any:
        """The next step, or None at the end of a directory; without frames all is done."""
        prefix, steps = self.frames[-1]
        step = next(steps, None)
        if step is not None:
            self.cursor = prefix + step[0]
            return step
        self.frames.pop()
        if not self.frames:
            self.cursor = ""
        return None

    def path(self, name: str) -> str:
        return self.frames[-1][0] + name

    def push(self, name: str, thing: Any, *, after: str = "") -> None:
        """Enters a thing that was the last step, or the first thing of all."""
        prefix = f"{self.path(name)}/" if self.frames else ""
        self.frames.append((prefix, self._enter(thing, after)))
        self.cursor = prefix


def resume(
    top: Any,
    cursor: str,
    *,
    enter: Callable[[Any, str], Iterator[Any]],
    child: Callable[[Any, str], Any],
) -> Position:
    """The position that a cursor tells, as far as what it names is still there: `child` is
    None for what cannot be entered any more."""
    position = Position(enter)
    *above, last = cursor.split("/")
    name, thing = "", top
    for part in above:
        position.push(name, thing, after=part)
        thing = child(thing, part)
        if thing is None:
            return position
        name = part
    position.push(name, thing, after=last)
    return position
