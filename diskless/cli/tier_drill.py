"""`diskless tier drill`."""

from typing import TYPE_CHECKING

import click
import msgspec

from diskless.cli import exits
from diskless.cli.meter import Meter
from diskless.cli.tier_address import address, which
from diskless.cli.tier_lines import drill_words
from diskless.cli.verb import Context, verb
from diskless.errors import DamagedTier, DisklessError

if TYPE_CHECKING:
    from diskless.model import DrillStatus

PROBLEMS_SHOWN = 20


@verb(
    "drill",
    examples=(
        "diskless tier drill",
        "diskless tier drill --full s3://bucket/prefix",
        "17 4 * * *  diskless tier drill --full    # a line for cron",
    ),
    statuses=(*exits.TIER, exits.NOT_FOUND, exits.NO_CLUSTER),
    through_client=False,
)
@address
@click.option("--full", is_flag=True, help="Read every file, not only the newest ones.")
def drill(context: Context, uri: str, key: str, credentials: str, full: bool) -> None:
    """Restore the newest state into a small cluster beside the running one, and read from it.

    Nothing is written to the tier, and the running cluster is not affected. It ends with one
    line: what was found, and how long a real restore would take. What is wrong is named, one line
    each, and the status is 6. Without URI the result is recorded in the cluster, and `diskless
    status` shows it; if the cluster does not answer, the drill is as good.
    """
    from diskless.operate.drill import drill as run

    tier = which(context, uri, key, credentials)
    with Meter("files", enabled=not context.json) as meter:
        result, problems = run(tier, full=full, progress=meter.left)
    for problem in problems[:PROBLEMS_SHOWN]:
        context.warn(problem)
    told = False if uri else _tell(context, result)
    context.result(
        {"uri": tier.uri, **msgspec.to_builtins(result), "wrong": problems, "told": told}
    )
    if not result.sound:
        raise DamagedTier(f"drill of {tier.uri}: {drill_words(result)}")
    context.say(f"drill of {tier.uri}: {drill_words(result)}")


def _tell(context: Context, result: "DrillStatus") -> bool:
    """Whether the cluster took it down."""
    try:
        context.connect().tier.drilled(result)
    except DisklessError as error:
        context.warn(f"note: the result was not recorded in the cluster ({error.reason})")
        return False
    return True
