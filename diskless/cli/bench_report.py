"""`diskless bench report`: tables, bounds and pictures of a run that was measured before."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest

if TYPE_CHECKING:
    from diskless.bench.figures import Result

DIRECTORY = "bench-out"
RESULT_NAME = "bench-result.json"
REPORT_NAME = "bench-report.md"


@verb(
    "report",
    examples=(
        "diskless bench report",
        "diskless bench report bench-out/bench-result.json --out docs/",
        "diskless bench report --json | jq '.bounds[] | select(.met | not)'",
    ),
    statuses=(exits.NOT_FOUND, exits.BOUND_MISSED),
    through_client=False,
)
@click.argument("file", type=click.Path(path_type=Path), default=Path(DIRECTORY, RESULT_NAME))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help=f"Write {REPORT_NAME} and draw the pictures there.")  # fmt: skip
def report(context: Context, file: Path, out: Path | None) -> int:
    """Show what a run measured: FILE is its JSON, bench-out/bench-result.json by default.

    The text is Markdown: medians with quartiles, and each bound of the project with what was
    measured, met or missed.
    """
    from diskless.bench import figures

    try:
        result = figures.decode(file.read_bytes())
    except figures.UnknownFormat as error:
        raise BadRequest(f"{file}: {error}") from None
    return show(context, result, out)


def show(context: Context, result: "Result", out: Path | None) -> int:
    """Prints and writes the report and draws the pictures; the exit status of its bounds."""
    import msgspec

    from diskless.bench import plots
    from diskless.bench import report as text
    from diskless.bench.bounds import judge

    rendered = text.as_text(result)
    context.say(rendered)
    judged = judge(result)
    written: list[Path] = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        written.append(out / REPORT_NAME)
        written[0].write_text(f"# Benchmark report\n\n{rendered}\n")
        try:
            written += plots.draw(result, out)
        except ImportError:
            context.warn(f"note: {plots.NO_PICTURE}")
    if written:
        context.say(f"\nwritten: {', '.join(map(str, written))}")
    context.result(
        {
            "result": msgspec.to_builtins(result),
            "bounds": [
                {
                    "topic": entry.bound.topic,
                    "what": entry.bound.title,
                    "measured": entry.value,
                    "quartiles": [entry.low, entry.high],
                    "bound": entry.bound.text,
                    "met": entry.met,
                }
                for entry in judged
            ],
            "written": [str(path) for path in written],
        }
    )
    return exits.OK if all(entry.met for entry in judged) else exits.BOUND_MISSED
