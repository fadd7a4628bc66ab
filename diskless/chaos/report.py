"""A run on paper: text for people, JSON for programs, a picture of the timeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from diskless.chaos.run import Outcome
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
    """Faults, margin, throughput and commit latency over time. Raises ImportError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    samples = outcome.samples
    at = [sample.at_s for sample in samples]
    figure, (faults, margin, rate, latency) = pyplot.subplots(
        4, 1, sharex=True, figsize=(11, 9), layout="constrained",
        gridspec_kw={"height_ratios": [outcome.agents / 3, 1.2, 2, 2]},
    )  # fmt: skip
    figure.suptitle(f"{outcome.verdict.line}\n{outcome.options.replay}", fontsize=9)
    _draw_faults(faults, outcome)
    margin.step(at, [float("nan") if s.margin is None else s.margin for s in samples],
                where="post", color="tab:red", label="margin")  # fmt: skip
    margin.step(at, [s.up for s in samples], where="post", color="tab:green", label="agents up")
    margin.set_ylim(-1.3, outcome.agents + 0.5)
    margin.legend(loc="center left", fontsize=8)
    rate.fill_between(at, [s.per_s for s in samples], step="post", alpha=0.5)
    rate.set_ylabel(f"{outcome.unit}/s")
    if any(s.degraded for s in samples):
        right = rate.twinx()
        right.step(at, [s.degraded for s in samples], where="post", color="tab:brown",
                   label="degraded")  # fmt: skip
        right.step(at, [s.repair.get("stripes_left", 0) for s in samples], where="post",
                   color="tab:blue", label="to be rebuilt")  # fmt: skip
        right.set_ylabel("stripes")
        right.legend(loc="upper left", fontsize=8)
    for name, values in (("median", [s.commit_ms for s in samples]),
                         ("slowest", [s.slowest_ms for s in samples])):  # fmt: skip
        latency.plot(at, [float("nan") if v is None else v for v in values], ".-", label=name)
    latency.set_yscale("log")
    latency.set_ylabel("commit, ms")
    latency.set_xlabel("seconds")
    latency.legend(loc="upper left", fontsize=8)
    for axes in (margin, rate, latency):
        for event in outcome.events:
            if event.kind in COLORS:
                axes.axvline(event.at_s, color=COLORS[event.kind], alpha=0.3, linewidth=1)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_faults(axes: Any, outcome: Outcome) -> None:
    """A bar for each fault on each of its agents; a mark where it has no length."""
    for event in outcome.events:
        color = COLORS.get(event.kind, "black")
        for slot in event.slots:
            _draw_fault(axes, event, slot, color)
    axes.set_yticks(range(outcome.agents), [f"agent-{slot}" for slot in range(outcome.agents)])
    axes.set_ylim(outcome.agents - 0.5, -0.5)
    kinds = dict.fromkeys(event.kind for event in outcome.events if event.slots)
    for kind in kinds:
        axes.plot([], [], "s", color=COLORS.get(kind, "black"), label=kind)
    if kinds:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=len(kinds))


def _draw_fault(axes: Any, event: Event, slot: int, color: str) -> None:
    if event.until_s is None:
        axes.plot([event.at_s], [slot], "x", color=color, markersize=9, markeredgewidth=2.5)
    else:
        axes.barh(slot, event.until_s - event.at_s, left=event.at_s, height=0.6, color=color)
