"""What `diskless bench recovery-table` measures, and its table and plot. Pure but for the plot.

The experiment is Kalogerakis' (a streaming word count on Flink and HDFS, recovered with its state
on the same host and on another), in PySpark.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

SIZES_MB = (1, 10, 50, 100, 200, 250, 300, 350, 400, 600)
"""Of the paper's input."""
DISKLESS, FILES = "diskless", "file"
LOCAL, REMOTE = "local", "remote"
PAPER = {LOCAL: "801 to 4,967", REMOTE: "843 to 7,544"}
"""Milliseconds from 1 to 600 MB, as the paper gives them; local at best 2.08 times as fast."""
NEAR_BOUND = 0.9


class Recovery(Struct, frozen=True, kw_only=True):
    """One fault, and how long it took until a batch was committed again."""

    whole_s: float
    near_share: float | None = None
    """The part of the bytes from other agents' shards that lay copied on the same host."""


class Row(Struct, frozen=True, kw_only=True):
    input_mb: float
    state_rows: int
    state_mb: float
    """Of the state's files."""
    recoveries: dict[str, Recovery]
    """By place and fault, as `key` writes them."""


class Table(Struct, frozen=True, kw_only=True):
    rows: list[Row]
    rate: str
    machine: str

    def replaced(self, row: Row) -> "Table":
        """With that row, in place of one of the same size."""
        others = [one for one in self.rows if one.input_mb != row.input_mb]
        rows = sorted([*others, row], key=lambda one: one.input_mb)
        return Table(rows=rows, rate=self.rate, machine=self.machine)


def key(place: str, fault: str) -> str:
    return f"{place} {fault}"


COLUMNS = [key(place, fault) for place in (DISKLESS, FILES) for fault in (LOCAL, REMOTE)]


def as_text(table: Table) -> str:
    """Markdown: what was measured, the paper's range, and the bounds."""
    head = ["input, MB", "state, MB", "words", *(f"{name}, s" for name in COLUMNS)]
    lines = [
        "# A word count that is recovered",
        "",
        f"`diskless bench recovery-table` on {table.machine}; all hosts share it, and are network "
        f"namespaces with links of {table.rate} each way. A recovery is from the kill to the next "
        "batch that is committed. What part of it the state took to load is not known: Spark's "
        "metrics of RocksDB do not tell it for this query.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *map(_line, table.rows),
        "",
        f"The paper, on Flink and HDFS, for 1 to 600 MB: local {PAPER[LOCAL]} ms, remote "
        f"{PAPER[REMOTE]} ms, local up to 2.08 times as fast. Its figures for single sizes are "
        "not repeated here.",
        "",
        verdict(table.rows),
        "",
    ]
    missing = [mb for mb in SIZES_MB if mb not in {row.input_mb for row in table.rows}]
    if missing:
        sizes = ", ".join(f"{mb:g}" for mb in missing)
        lines += [f"Not measured: {sizes} MB (`diskless bench recovery-table --sizes …`).", ""]
    return "\n".join(lines)


def _line(row: Row) -> str:
    cells = [f"{row.input_mb:g}", f"{row.state_mb:.1f}", f"{row.state_rows:,}"]
    for name in COLUMNS:
        found = row.recoveries.get(name)
        cells.append(f"{found.whole_s:.1f}" if found else "")
    return f"| {' | '.join(cells)} |"


def verdict(rows: Sequence[Row]) -> str:
    """Whether what is read after a local fault lies near, as far as rows tell."""
    shares = [
        found.near_share
        for row in rows
        if (found := row.recoveries.get(key(DISKLESS, LOCAL))) and found.near_share is not None
    ]
    what = f"Bound: {NEAR_BOUND:.0%} of the bytes are read on the same host after a local fault: "
    if not shares:
        return what + "not measured."
    met = "met" if min(shares) >= NEAR_BOUND else "missed"
    return what + f"{met}, {', '.join(f'{share:.0%}' for share in shares)}."


def draw(table: Table, path: Path) -> None:
    """Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name in COLUMNS:
        rows = [row for row in table.rows if name in row.recoveries]
        seconds = [row.recoveries[name].whole_s for row in rows]
        panel.plot([row.input_mb for row in rows], seconds, marker="o", label=name)
    panel.set(title="recovery of a word count", xlabel="input, MB", ylabel="s", xscale="log")
    panel.set_ylim(bottom=0)
    panel.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
