"""`diskless bench run`: measures diskless and what users would pick instead, in one run."""

import shlex
from pathlib import Path

import click

from diskless.bench.sizes import PARTS
from diskless.cli import exits
from diskless.cli.bench_report import DIRECTORY, RESULT_NAME, show
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest


@verb(
    "run",
    examples=(
        "diskless bench run                            # the short one, under 15 minutes",
        "diskless bench run --full --out results/      # everything, for hours",
        "diskless bench run --only store --set repetitions=3 --set shapes=4+2",
    ),
    statuses=(exits.LAUNCH_FAILED, exits.SPARK_UNUSABLE, exits.BOUND_MISSED),
    through_client=False,
)
@click.option("--full", is_flag=True, help="Larger, longer, more often, and all of growth.")
@click.option("--only", multiple=True, metavar="PART",
              help=f"Only these parts, of {', '.join(PARTS)}; may be repeated.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="Another size than the run has: see diskless/bench/sizes.py.")  # fmt: skip
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(DIRECTORY),
    show_default=True,
    metavar="DIR",
    help=f"Where {RESULT_NAME}, the report and the pictures go.",
)
def run(
    context: Context, full: bool, only: tuple[str, ...], settings: tuple[str, ...], out: Path
) -> int:
    """Measure diskless at 2+1, 4+2 and 8+3, local disk, tmpfs and Redis with two replicas.

    Every system does the same work in the same run, in turns, several times. Clusters and
    Redis servers are its own and end with it. Nothing else should work on the machine.
    """
    chosen = _parts(only)
    from diskless.bench import figures, sizes
    from diskless.bench.run import run as run_bench

    measured = sizes.changed(sizes.FULL if full else sizes.SHORT, settings)
    out.mkdir(parents=True, exist_ok=True)  # now, not after a quarter of an hour
    path = out / RESULT_NAME
    result = run_bench(
        measured,
        only=chosen,
        command=_command(full, only, settings),
        profile="full" if full else "short",
        keep=lambda so_far: path.write_bytes(figures.encode(so_far)),
        quiet=context.json,
    )
    status = show(context, result, out)
    context.say(f"all figures: {path}")
    failed = [note for note in result.notes if " failed: " in note]
    return exits.FAILED if failed else status


def _parts(only: tuple[str, ...]) -> tuple[str, ...]:
    parts = [part for text in only for part in text.split(",") if part]
    for part in parts:
        if part not in PARTS:
            raise BadRequest(f"--only {part!r}: choose of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in parts)


def _command(full: bool, only: tuple[str, ...], settings: tuple[str, ...]) -> str:
    words = ["diskless", "bench", "run"]
    if full:
        words.append("--full")
    for part in only:
        words += ["--only", part]
    for setting in settings:
        words += ["--set", setting]
    return shlex.join(words)
