"""What a run of the benchmark found: series of samples, and the statistics of them. Pure.

Every measurement is a series: one kind of work, on one system, at one size, with one sample
for each repetition. Ratios are taken within a repetition, because the machine of one minute
is not the machine of the next; systems take turns within it.
"""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

FORMAT = 2
"""Of the document; `diskless bench report` refuses another one."""


class Series(Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: str
    """Which part of the run measured it."""
    work: str
    """What was done; the same words for every system that did it."""
    system: str
    unit: str
    samples: list[float]
    size: float | None = None
    """What was varied: state in MB, agents, files in the namespace."""
    beside: str = ""
    """Which cluster's turns it shared, where several had their turns one after the other."""
    note: str = ""

    @property
    def spread(self) -> "Spread":
        return spread_of(self.samples)


class Spread(Struct, frozen=True, kw_only=True):
    """The middle of some samples, and the middle half of them."""

    median: float
    low: float
    high: float
    count: int


class Result(Struct, frozen=True, kw_only=True):
    """The document of one run."""

    format: int = FORMAT
    started: str
    command: str
    profile: str
    sizes: dict[str, Any]
    machine: dict[str, Any]
    seconds: dict[str, float]
    """How long each part took."""
    series: list[Series]
    notes: list[str] = []
    """What could not be measured, and why."""

    def find(
        self, work: str, system: str, *, size: float | None = None, beside: str | None = None
    ) -> Series | None:
        """A series; one that was measured beside several clusters as a whole, by default."""
        found = [
            entry
            for entry in self.series
            if (entry.work, entry.system, entry.size) == (work, system, size)
            and beside in (None, entry.beside)
        ]
        if len(found) < 2:
            return found[0] if found else None
        samples = [sample for entry in found for sample in entry.samples]
        return msgspec.structs.replace(found[0], samples=samples, beside="")

    def of_part(self, part: str) -> Iterator[Series]:
        return (entry for entry in self.series if entry.part == part)


_BREAK = ",\n  "


class UnknownFormat(ValueError):
    """The file is no result of this version's benchmark."""


def encode(result: Result) -> bytes:
    """With a line for each series, so that two runs can be compared by a diff."""
    fields = msgspec.to_builtins(result)
    lines = [json.dumps(entry, ensure_ascii=False) for entry in fields.pop("series")]
    head = json.dumps(fields, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "series": [\n  {_BREAK.join(lines)}\n ]\n}}\n'.encode()


def decode(data: bytes) -> Result:
    """Raises UnknownFormat."""
    try:
        found = msgspec.json.decode(data, type=Result)
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"not a result of `diskless bench run`: {error}") from error
    if found.format != FORMAT:
        raise UnknownFormat(f"a result of format {found.format}, not {FORMAT}: run it again")
    return found


def spread_of(samples: Iterable[float]) -> Spread:
    """Median and quartiles; of a single sample all three are that one."""
    values = sorted(samples)
    if not values:
        raise ValueError("no samples")
    if len(values) == 1:
        low = high = values[0]
    else:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=statistics.median(values), low=low, high=high, count=len(values))


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Sample by sample where both have one for each repetition; else of the medians."""
    if len(above) == len(below):
        return [a / b for a, b in zip(above, below, strict=True)]
    return [statistics.median(above) / statistics.median(below)]
