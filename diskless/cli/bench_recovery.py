"""`diskless bench recovery-table`: a word count that is recovered, locally and elsewhere."""

from pathlib import Path

import click

from diskless.cli import exits
from diskless.cli.bench_report import DIRECTORY
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest

RESULT_NAME = "recovery-table.json"
REPORT_NAME = "recovery-table.md"
PICTURE_NAME = "recovery-table.png"


@verb(
    "recovery-table",
    examples=(
        "diskless bench recovery-table --sizes 1,10,50",
        "diskless bench recovery-table --out docs/     # all sizes of the paper, for hours",
    ),
    statuses=(exits.LAUNCH_FAILED, exits.SPARK_UNUSABLE),
    through_client=False,
)
@click.option("--sizes", default="1,10,50,100,200,250,300,350,400,600", show_default=True,
              metavar="MB,…", help="Of the input.")  # fmt: skip
@click.option("--rate", default="1gbit", show_default=True, help="Of all links, as tc writes it.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(DIRECTORY),
    show_default=True,
    metavar="DIR",
    help=f"Where {RESULT_NAME}, {REPORT_NAME} and {PICTURE_NAME} go.",
)
def recovery_table(context: Context, sizes: str, rate: str, out: Path) -> int:
    """Measure how long a streaming word count takes to be recovered, by size of its input.

    On hosts that cluster/hosts.py makes on this machine, which needs root and iproute2:
    the executor dies and another starts on its host (local), or its host dies (remote), with
    the checkpoint in diskless and in a shared directory. Rows of other sizes that DIR has from an
    earlier run with the same rate stay.
    """
    import msgspec

    from diskless.bench import machine, recovery_table
    from diskless.bench.recovery_rows import Table, as_text, draw

    chosen = parse_sizes(sizes)
    out.mkdir(parents=True, exist_ok=True)
    path = out / RESULT_NAME
    table = Table(rows=[], rate=rate, machine=machine.brief())
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=Table)
        table = before if before.rate == rate else table
    with recovery_table.site(chosen, rate) as made:
        for size_mb in chosen:
            table = table.replaced(recovery_table.measure(made, size_mb, context.say))
            path.write_bytes(msgspec.json.format(msgspec.json.encode(table)))
    (out / REPORT_NAME).write_text(as_text(table))
    context.say(as_text(table))
    context.result(msgspec.to_builtins(table))
    try:
        draw(table, out / PICTURE_NAME)
    except ImportError:
        context.say("no picture: matplotlib is missing (pip install 'diskless[bench]')")
    return exits.OK


def parse_sizes(text: str) -> list[float]:
    """Raises BadRequest."""
    try:
        sizes = [float(one) for one in text.split(",") if one.strip()]
    except ValueError:
        raise BadRequest(f"--sizes {text}: megabytes such as 1,10,50") from None
    if not sizes or min(sizes) <= 0:
        raise BadRequest(f"--sizes {text}: megabytes such as 1,10,50")
    return sorted(set(sizes))
