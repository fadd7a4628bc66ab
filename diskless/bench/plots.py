"""Pictures of a result: every system side by side, Spark's checkpoints, recovery, growth."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diskless.bench import works
from diskless.bench.figures import Result, Series
from diskless.bench.report import SYSTEMS, number

NO_PICTURE = "no pictures: matplotlib is missing (pip install 'diskless[bench]')"
COLORS = {
    works.diskless("2+1"): "#7fb3e6",
    works.diskless("4+2"): "#1f77b4",
    works.diskless("8+3"): "#0d3d66",
    works.REDIS: "#d62728",
    works.DISK: "#7f7f7f",
    works.DISK_FSYNC: "#525252",
    works.TMPFS: "#c7c7c7",
}
PANELS = (
    (works.TINY_SERIAL, "less is better"),
    (works.TINY_MANY, "less is better"),
    (works.BURST, "less is better"),
    (works.BULK_WRITE, "more is better"),
    (works.BULK_READ, "more is better"),
    (works.MEMORY, "less is better"),
)
DPI = 110
CAPTION_CHARS = 170
WIDTH_INCHES = 11.0


def draw(result: Result, directory: Path) -> list[Path]:
    """Writes what the result has figures for, and says which files. Raises ImportError."""
    import matplotlib

    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Callable[[Any, Result], None]] = {
        "bench-stores.png": _stores,
        "bench-spark.png": _spark,
        "bench-recovery.png": _recovery,
        "bench-growth.png": _growth,
    }
    needed = {"bench-stores.png": "store", "bench-spark.png": "spark"}
    written = []
    for name, paint in pictures.items():
        part = needed.get(name, name.removeprefix("bench-").removesuffix(".png"))
        if any(True for _ in result.of_part(part)):
            written.append(_picture(result, directory / name, paint))
    return written


def _picture(result: Result, path: Path, paint: Callable[[Any, Result], None]) -> Path:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(WIDTH_INCHES, 6.2), layout="constrained")
    paint(figure, result)
    machine = result.machine
    caption = (
        f"{result.command}, {result.started}, {machine['cores']} cores of {machine['cpu']}; "
        "medians, bars of the quartiles"
    )
    figure.supxlabel(textwrap.fill(caption, CAPTION_CHARS), fontsize=8)
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
    return path


def _stores(figure: Any, result: Result) -> None:
    axes = figure.subplots(2, 3).flat
    for panel, (work, better) in zip(axes, PANELS, strict=True):
        found = [entry for system in SYSTEMS if (entry := result.find(work, system))]
        panel.set_visible(bool(found))
        _bars(panel, found)
        panel.set_title(f"{work}\n{found[0].unit if found else ''}, {better}", fontsize=9)


def _spark(figure: Any, result: Result) -> None:
    """One file; then for each set-up its checkpoint and, below, its whole trigger."""
    prefix = works.checkpoint("")
    setups = dict.fromkeys(
        entry.work.removeprefix(prefix)
        for entry in result.of_part("spark")
        if entry.work.startswith(prefix)
    )
    columns = [(works.SPARK_COMMIT, ""), *((works.checkpoint(s), works.trigger(s)) for s in setups)]
    systems = (works.DISK, works.TMPFS, *SYSTEMS[:3])
    figure.set_figwidth(max(WIDTH_INCHES, 2.6 * len(columns)))
    panels = figure.subplots(2, len(columns), squeeze=False)
    for column, pair in enumerate(columns):
        for row, work in enumerate(pair):
            found = [entry for system in systems if (entry := result.find(work, system))]
            panel = panels[row][column]
            panel.set_visible(bool(found))
            _bars(panel, found)
            panel.set_title(f"{work}\nms, less is better", fontsize=9)


def _bars(panel: Any, entries: Sequence[Series]) -> None:
    spreads = [entry.spread for entry in entries]
    places = range(len(entries))
    bars = panel.bar(
        places,
        [spread.median for spread in spreads],
        color=[COLORS.get(entry.system, "tab:green") for entry in entries],
        yerr=[
            [spread.median - spread.low for spread in spreads],
            [spread.high - spread.median for spread in spreads],
        ],
        capsize=3,
    )
    panel.bar_label(bars, [number(spread.median) for spread in spreads], fontsize=7, padding=2)
    panel.margins(y=0.12)
    labels = [entry.system.replace(", 2 replicas", "") for entry in entries]
    panel.set_xticks(places, labels, rotation=30, ha="right", fontsize=8)


def _recovery(figure: Any, result: Result) -> None:
    restarted, times = figure.subplots(1, 2)
    for provider, style in (("hdfs", "-"), ("rocksdb", "--")):
        for system in (works.DISK, works.diskless(works.MAIN_SHAPE)):
            _line(restarted, result, works.restart(provider), system,
                  f"{system}, {provider}", style=style, color=COLORS[system])  # fmt: skip
    restarted.set_title("query restarted in a new JVM, to its first commit\nseconds", fontsize=9)
    for work in (works.DETECTION, works.HEALTHY_READ, works.DEGRADED_READ, works.REBUILD,
                 works.TOTAL):  # fmt: skip
        _line(times, result, work, works.diskless(works.MAIN_SHAPE), work)
    times.set_title("two of six agents killed\nseconds", fontsize=9)
    for panel in (restarted, times):
        panel.set_xscale("log")
        panel.set_xlabel("MB of state")
        panel.set_ylim(bottom=0)
        if panel.has_data():
            panel.legend(fontsize=8)


def _growth(figure: Any, result: Result) -> None:
    panels = figure.subplots(1, 3)
    main = works.diskless(works.MAIN_SHAPE)
    for work in (works.GROWN_COMMIT, works.GROWN_STAT, works.GROWN_LIST):
        _line(panels[0], result, work, main, work.partition(",")[0])
    _line(panels[1], result, works.AGENTS_COMMIT, main, "1 KiB commit")
    for system in (works.DISK, main):
        _line(panels[2], result, works.STATE_CHECKPOINT, system, system, color=COLORS[system])
    titles = ("files in the namespace, ms", "agents, ms", "MB of state: checkpoint, ms")
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=9)
        if panel.has_data():
            panel.set_ylim(bottom=0)
            panel.legend(fontsize=8)
        else:
            panel.set_visible(False)
    panels[0].set_xscale("log")
    panels[2].set_xscale("log")


def _line(
    panel: Any,
    result: Result,
    work: str,
    system: str,
    label: str,
    *,
    style: str = "-",
    color: str | None = None,
) -> None:
    """A work over its sizes, if it was measured at any."""
    found = sorted(
        ((entry.size, entry.spread) for entry in result.series
         if entry.work == work and entry.system == system and entry.size is not None),
        key=lambda pair: pair[0],
    )  # fmt: skip
    if not found:
        return
    sizes = [size for size, _ in found]
    panel.errorbar(
        sizes,
        [spread.median for _, spread in found],
        yerr=[
            [spread.median - spread.low for _, spread in found],
            [spread.high - spread.median for _, spread in found],
        ],
        marker="o",
        capsize=3,
        linestyle=style,
        color=color,
        label=label,
    )
