"""Collects samples into series as a part measures them, and times the work."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from diskless.bench.figures import Series

Say = Callable[[str], None]
T = TypeVar("T")


class Recorder:
    def __init__(self, part: str) -> None:
        self._part = part
        self._series: dict[tuple[str, str, float | None, str], Series] = {}
        self.notes: list[str] = []
        self.beside = ""
        """Which cluster takes part at the moment."""

    def add(
        self,
        work: str,
        system: str,
        value: float,
        unit: str,
        *,
        size: float | None = None,
        note: str = "",
    ) -> None:
        """One more sample of a series, which the first one makes."""
        key = (work, system, size, self.beside)
        if key not in self._series:
            self._series[key] = Series(
                part=self._part,
                work=work,
                system=system,
                unit=unit,
                samples=[],
                size=size,
                beside=self.beside,
                note=note,
            )
        self._series[key].samples.append(value)

    def turns(self, count: int) -> Iterator[tuple[int, "Recorder"]]:
        """So many turns, each with what takes its figures; one before them, -1, only warms up."""
        yield -1, Recorder("unused")
        for turn in range(count):
            yield turn, self

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @property
    def series(self) -> list[Series]:
        return list(self._series.values())


def in_turn(sides: Sequence[T], turn: int) -> Sequence[T]:
    """What is compared, every other turn from the last to the first."""
    return sides if turn % 2 else sides[::-1]


def timed_s(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
