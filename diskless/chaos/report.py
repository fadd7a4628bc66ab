"""A run on paper: text for people, JSON for programs, a picture of the timeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from diskless.chaos.run import Outcome
from diskless.chaos.slowdown import GRACE_S, SHARE_MIN, Slowdown
from diskless.chaos.timeline import Event, Sample

ROWS_MAX = 40
"""Rows of the text's timeline; a longer run has samples put together."""
SHOWN_MAX = 5
"""Findings of one kind that the text shows; the JSON has all of them."""
NO_PICTURE = "no picture: matplotlib is missing (pip install 'diskless[chaos]')"
COLORS = {
    "kill": "tab:red",
    "pause": "tab:orange",
    "partition": "tab:purple",
    "corrupt": "tab:brown",
    "slow": "tab:olive",
    "fill": "tab:gray",
    "heal": "tab:green",
    "healed": "tab:green",
}

ENDS = ("heal", "not taken back", "healed", "not healed")
"""Events that tell how a run ended."""


def write(outcome: Outcome, directory: Path) -> tuple[list[Path], list[str]]:
    """Writes report.txt, report.json and timeline.png; also what could not be written."""
    directory.mkdir(parents=True, exist_ok=True)
    text, data, picture = (
        directory / name for name in ("report.txt", "report.json", "timeline.png")
    )
    text.write_text(as_text(outcome) + "\n")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
    try:
        draw(outcome, picture)
    except ImportError:
        return [text, data], [NO_PICTURE]
    return [text, data, picture], []


def as_text(outcome: Outcome) -> str:
    findings = outcome.findings
    lines = [
        f"chaos run, seed {outcome.options.seed}: {outcome.options.workload} for "
        f"{outcome.options.duration_s:g} s on {outcome.agents} agents, k = {outcome.k}, "
        f"at most {outcome.options.max_down} down",
        "",
        *_timeline(outcome),
        "",
        f"faults: {outcome.planted} of {len(outcome.plan)} planned; "
        f"{outcome.flipped} shards corrupted, {outcome.mended} of them flipped back by us",
        f"{outcome.unit}: {findings.operations}, {findings.acknowledged} acknowledged, "
        f"{findings.unknown} with unknown outcome",
    ]
    if findings.refusals:
        told = ", ".join(f"{reason} {n}" for reason, n in sorted(findings.refusals.items()))
        lines.append(f"refused: {told}")
    lines += [f"note: {note}" for note in findings.notes]
    lines += [slowdown_line(slowdown, outcome.unit) for slowdown in outcome.slowdowns]
    for title, found in (
        ("wrong", findings.wrong),
        ("undecided", findings.undecided),
        ("unreadable", findings.unreadable),
    ):
        lines += [f"{title}: {text}" for text in found[:SHOWN_MAX]]
        if len(found) > SHOWN_MAX:
            lines.append(f"{title}: and {len(found) - SHOWN_MAX} more")
    if outcome.healed_after_s is not None:
        lines.append(
            f"healed: margin {outcome.k} again {outcome.healed_after_s:.1f} s after the end"
        )
    return "\n".join([*lines, "", outcome.verdict.line, f"again: {outcome.options.replay}"])


def slowdown_line(slowdown: Slowdown, unit: str) -> str:
    """What a slow fault cost, and whether that is within the bound."""
    if slowdown.share is None:
        told = "not measured: it was too short, or not the only fault"
    else:
        told = (
            f"{slowdown.before_per_s:.0f} {unit}/s before, {slowdown.during_per_s:.0f} from "
            f"{GRACE_S:g} s after it began: {slowdown.share:.2f} of it"
        )
        if slowdown.kept is not None:
            told += f" (bound {SHARE_MIN}: {'kept' if slowdown.kept else 'MISSED'})"
    return f"slow, at {slowdown.at_s:.1f} s: {slowdown.text}: {told}"


def _timeline(outcome: Outcome) -> list[str]:
    """Faults between the samples around them."""
    titles = f"{'s':>6}  {'margin':>6}  {'up':>2}  {outcome.unit + '/s':>12}"
    head = f"{titles}  {'commit ms':>9}  {'slowest':>8}"
    rows: list[tuple[float, str]] = [(event.at_s, f"{event.at_s:6.1f}  * {event.text}")
                                     for event in outcome.events]  # fmt: skip
    rows += [(sample.at_s, _row(sample)) for sample in thin_out(outcome.samples, ROWS_MAX)]
    return [head, *(text for _, text in sorted(rows, key=lambda row: row[0]))]


def _row(sample: Sample) -> str:
    margin = "?" if sample.margin is None else str(sample.margin)
    commit = "-" if sample.commit_ms is None else f"{sample.commit_ms:.1f}"
    slowest = "-" if sample.slowest_ms is None else f"{sample.slowest_ms:.0f}"
    extra = [sample.note] if sample.note else []
    extra += [f"{sample.errors} errors"] if sample.errors else []
    extra += [f"{sample.degraded} stripes degraded"] if sample.degraded else []
    if sample.repair.get("stripes_left"):
        extra.append(f"{sample.repair['state']}: {sample.repair['stripes_left']} left")
    row = f"{sample.at_s:6.1f}  {margin:>6}  {sample.up:>2}  {sample.per_s:>12.0f}"
    return f"{row}  {commit:>9}  {slowest:>8}  {', '.join(extra)}".rstrip()


def thin_out(samples: Sequence[Sample], rows: int) -> list[Sample]:
    """So few samples that each stands for several: the worst of them, not their mean."""
    step = -(-len(samples) // rows) or 1
    groups = [samples[at : at + step] for at in range(0, len(samples), step)]
    return [_worst(group) for group in groups]


def _worst(group: Sequence[Sample]) -> Sample:
    margins = [sample.margin for sample in group if sample.margin is not None]
    commits = [sample.commit_ms for sample in group if sample.commit_ms is not None]
    slowest = [sample.slowest_ms for sample in group if sample.slowest_ms is not None]
    return Sample(
        at_s=group[-1].at_s,
        margin=min(margins) if len(margins) == len(group) else None,
        up=min(sample.up for sample in group),
        per_s=sum(sample.per_s for sample in group) / len(group),
        commit_ms=max(commits, default=None),
        slowest_ms=max(slowest, default=None),
        errors=sum(sample.errors for sample in group),
        degraded=max(sample.degraded for sample in group),
        repair=max((sample.repair for sample in group), key=lambda r: r.get("stripes_left", 0)),
        note=next((sample.note for sample in group if sample.note), ""),
    )


def draw(outcome: Outcome, path: Path) -> None:
    """The timeline as a picture: who was broken, what that cost, and how it was healed.

    Raises ImportError without matplotlib.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (faults, margin, rate, repair, latency) = pyplot.subplots(
        5, 1, sharex=True, figsize=(12, 10.5), layout="constrained",
        gridspec_kw={"height_ratios": [outcome.agents / 3, 1.4, 1.6, 1.2, 1.8]},
    )  # fmt: skip
    figure.suptitle(f"{outcome.verdict.line}\n{outcome.options.replay}", fontsize=9)
    _draw_faults(faults, outcome)
    _draw_margin(margin, outcome)
    _draw_rate(rate, outcome)
    _draw_repair(repair, outcome)
    _draw_latency(latency, outcome)
    for axes in (faults, margin, rate, repair, latency):
        _mark(axes, outcome)
    for axes in (margin, rate, repair, latency):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _mark(axes: Any, outcome: Outcome) -> None:
    """When faults began and all were over, and, in grey, when the cluster gave no answer."""
    for event in outcome.events:
        if event.kind in COLORS:
            axes.axvline(event.at_s, color=COLORS[event.kind], alpha=0.3, linewidth=1)
    began_s = 0.0
    for sample in outcome.samples:
        if sample.margin is None:
            axes.axvspan(began_s, sample.at_s, color="black", alpha=0.12, linewidth=0)
        began_s = sample.at_s


def _draw_margin(axes: Any, outcome: Outcome) -> None:
    at = [sample.at_s for sample in outcome.samples]
    margins = [float("nan") if s.margin is None else s.margin for s in outcome.samples]
    axes.step(at, [s.up for s in outcome.samples], where="post", color="tab:green",
              label="agents up")  # fmt: skip
    axes.step(at, margins, where="post", color="tab:red", linewidth=2, label="margin")
    axes.axhline(outcome.k, color="tab:red", linestyle=":", linewidth=1, label=f"k = {outcome.k}")
    axes.axhspan(-1.5, -0.5, color="tab:red", alpha=0.15, label="bytes out of reach")
    axes.plot([], [], "s", color="black", alpha=0.12, label="no answer")
    axes.set_ylim(-1.5, outcome.agents + 0.5)
    axes.set_ylabel("agents")


def _draw_rate(axes: Any, outcome: Outcome) -> None:
    """What was done in an interval is known at its end."""
    at = [sample.at_s for sample in outcome.samples]
    axes.fill_between(at, [s.per_s for s in outcome.samples], step="pre", alpha=0.5, label="done")
    failed = [sample for sample in outcome.samples if sample.errors]
    axes.plot([s.at_s for s in failed], [0.0] * len(failed), "x", color="tab:red",
              label="refused, unclear")  # fmt: skip
    axes.set_ylabel(f"{outcome.unit}/s")


def _draw_repair(axes: Any, outcome: Outcome) -> None:
    at = [sample.at_s for sample in outcome.samples]
    axes.fill_between(at, [s.degraded for s in outcome.samples], step="post", color="tab:brown",
                      alpha=0.5, label="degraded")  # fmt: skip
    axes.step(at, [s.repair.get("stripes_left", 0) for s in outcome.samples], where="post",
              color="tab:blue", label="in repair")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_ylabel("stripes")


def _draw_latency(axes: Any, outcome: Outcome) -> None:
    at = [sample.at_s for sample in outcome.samples]
    for name, values in (("median", [s.commit_ms for s in outcome.samples]),
                         ("slowest", [s.slowest_ms for s in outcome.samples])):  # fmt: skip
        axes.plot(at, [float("nan") if v is None else v for v in values], ".-", label=name)
    axes.set_yscale("log")
    axes.set_ylabel("commit, ms")
    axes.set_xlabel("seconds")


def _draw_faults(axes: Any, outcome: Outcome) -> None:
    """A bar for each fault on each of its agents; a cross where it has no length."""
    for event in outcome.events:
        color = COLORS.get(event.kind, "black")
        for slot in event.slots:
            _draw_fault(axes, event, slot, color)
    ends = [f"{event.text} at {event.at_s:.1f} s" for event in outcome.events if event.kind in ENDS]
    axes.set_title("; ".join(ends), loc="right", fontsize=8)
    axes.set_yticks(range(outcome.agents), [f"agent-{slot}" for slot in range(outcome.agents)])
    axes.set_ylim(outcome.agents - 0.5, -0.5)
    for kind in dict.fromkeys(event.kind for event in outcome.events if event.slots):
        shape = "x" if kind == "kill" else "s"
        axes.plot([], [], shape, color=COLORS.get(kind, "black"), label=kind)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _draw_fault(axes: Any, event: Event, slot: int, color: str) -> None:
    if event.until_s is None:
        axes.plot([event.at_s], [slot], "x", color=color, markersize=9, markeredgewidth=2.5)
    else:
        axes.barh(slot, event.until_s - event.at_s, left=event.at_s, height=0.6, color=color)
