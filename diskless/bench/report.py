"""A result as text: the machine, tables of medians and spread, and every bound, met or missed.

Markdown, so that docs/benchmarks.md can hold it as it is. Pure.
"""

from collections.abc import Iterable, Sequence

from diskless.bench import works
from diskless.bench.bounds import Judged, judge
from diskless.bench.figures import Result, Series, Spread

SYSTEMS = (
    *(works.diskless(shape) for shape in ("2+1", "4+2", "8+3")),
    works.REDIS,
    works.DISK,
    works.DISK_FSYNC,
    works.TMPFS,
)
_TIMED = (
    works.TINY_SERIAL,
    works.TINY_MANY,
    works.BURST,
    works.BULK_WRITE,
    works.BULK_READ,
    works.BULK_READ_DOWN,
    works.SMALL_READ,
    works.SMALL_READ_DOWN,
)
STORE_WORKS = (
    *(name for work in _TIMED for name in (work, works.cpu(work))),
    works.MEMORY,
    works.SURVIVED,
)
NOTHING = "–"


def as_text(result: Result) -> str:
    """The whole report."""
    parts = [
        _heading(result),
        _section("Every system, the same work", systems_table(result)),
        _section("Spark", _spark_table(result)),
        _section("Recovery", recovery_table(result)),
        _section("Everything else", _rest_table(result)),
        _section("Bounds", bounds_table(judge(result))),
        "\n".join(f"Note: {note}" for note in result.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def _section(title: str, table: str) -> str:
    return f"## {title}\n\n{table}" if table else ""


def _heading(result: Result) -> str:
    machine, took_s = result.machine, sum(result.seconds.values())
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"`{result.command}` ({result.profile}), {result.started}, {took_s / 60:.0f} minutes\n\n"
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']:g} GiB, "
        f"{machine['system']}, kernel {machine['kernel']}, disk {machine['disk']}, "
        f"load {machine['load'][0]:g} when it began; {versions}.\n\n"
        "Medians [quartiles] over the repetitions; ratios are taken within a repetition."
    )


# Tables.


def systems_table(result: Result) -> str:
    """The works that every store did, one column a system."""
    systems = [
        system
        for system in SYSTEMS
        if any(entry.system == system and entry.work in STORE_WORKS for entry in result.series)
    ]
    rows = []
    for work in STORE_WORKS:
        found = [result.find(work, system) for system in systems]
        unit = next((entry.unit for entry in found if entry), "")
        if unit:
            rows.append([f"{work}, {unit}", *map(_cell, found)])
    return table(["", *systems], rows)


def _spark_table(result: Result) -> str:
    names = [works.DISK, works.TMPFS, *(name for name in SYSTEMS if name.startswith("diskless"))]
    of_spark = list(result.of_part("spark"))
    systems = [name for name in names if any(entry.system == name for entry in of_spark)]
    rows = []
    for work in dict.fromkeys(entry.work for entry in of_spark):
        found = [result.find(work, system) for system in systems]
        unit = next(entry.unit for entry in found if entry)
        rows.append([f"{work}, {unit}", *map(_cell, found)])
    return table(["", *systems], rows)


def recovery_table(result: Result) -> str:
    """By size in MB; then what has none."""
    entries = list(result.of_part("recovery"))
    sizes = sorted({entry.size for entry in entries if entry.size is not None})
    rows = []
    for work, system in dict.fromkeys((entry.work, entry.system) for entry in entries):
        found = [result.find(work, system, size=size) for size in sizes]
        known = next((entry for entry in found if entry), None)
        if known:
            rows.append([f"{work}, {known.unit}", system, *map(_cell, found)])
    by_size = table(["", "", *(f"{size:g} MB" for size in sizes)], rows)
    plain = [entry for entry in entries if entry.size is None]
    listed = table(["", "", "median"], [[f"{e.work}, {e.unit}", e.system, _cell(e)] for e in plain])
    return "\n\n".join(part for part in (by_size, listed) if part)


def _rest_table(result: Result) -> str:
    shown = {"spark", "recovery"}
    rows = [
        [entry.part, entry.work, entry.system, _size(entry), _cell(entry), entry.unit, entry.note]
        for entry in result.series
        if entry.part not in shown and not (entry.part == "store" and entry.work in STORE_WORKS)
    ]
    return table(["part", "work", "system", "at", "median", "unit", "note"], rows)


def bounds_table(judged: Iterable[Judged]) -> str:
    rows = [
        [
            entry.bound.topic,
            entry.bound.title,
            _with_spread(Spread(median=entry.value, low=entry.low, high=entry.high, count=2)),
            entry.bound.text,
            "met" if entry.met else "**missed**",
        ]
        for entry in judged
    ]
    return table(["topic", "what", "measured", "bound", ""], rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, with columns as wide as they need to be; "" without rows."""
    if not rows:
        return ""
    widths = [max(len(row[n]) for row in (headings, *rows)) for n in range(len(headings))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (headings, *rows)
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


# Cells.


def _cell(entry: Series | None) -> str:
    return NOTHING if entry is None else _with_spread(entry.spread)


def _with_spread(spread: Spread) -> str:
    middle = number(spread.median)
    if spread.count == 1 or spread.low == spread.high == spread.median:
        return middle
    return f"{middle} [{number(spread.low)}–{number(spread.high)}]"


def number(value: float) -> str:
    """Three digits that mean something, without exponents."""
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    for digits, least in ((1, 10), (2, 1)):
        if abs(value) >= least:
            return f"{value:.{digits}f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.2g}"


def _size(entry: Series) -> str:
    if entry.size is not None:
        return f"{entry.size:,g}"
    return f"beside {entry.beside}" if entry.part == "store" else ""
