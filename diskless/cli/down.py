"""`diskless down`."""

import click

from diskless.cli import exits
from diskless.cli.meter import Meter
from diskless.cli.verb import Context, verb


@verb(
    "down",
    examples=("diskless down", "diskless down --discard", "diskless down --cluster night"),
    through_client=False,
    statuses=(exits.NO_CLUSTER, exits.FILES_EXIST, exits.LAUNCH_FAILED, exits.UNAVAILABLE),
)
@click.option("--discard", is_flag=True, help="Also if it holds files: they are lost.")
@click.option("--name", metavar="NAME", help="Name of the cluster; the same as --cluster.")
def command(context: Context, discard: bool, name: str | None) -> None:
    """End a cluster, with all that it holds.

    Every process, socket and file that `up` made is removed, but for audit files. It refuses
    when files exist, or when the cluster cannot say whether any do, unless --discard.

    With a tier everything is brought there first, and `diskless up --restore URI` brings the
    cluster back as it was, with the keys that its descriptor keeps. Clients that write meanwhile
    are refused before the last of it goes there, so nothing that was acknowledged is lost.
    --discard does not wait for the tier, and forgets the keys; what is in the tier stays there.
    """
    context.cluster = name or context.cluster
    cluster = context.cluster_name()
    from diskless.operate import ray_cluster

    with Meter("changes to the tier", enabled=not context.json) as meter:
        parked = ray_cluster.down(
            cluster,
            discard=discard,
            draining=lambda found: meter.left(max(found.newest - found.horizon, 0)),
        )
    context.say(f"cluster {cluster} is down" + (", and all of it in its tier" if parked else ""))
    context.result({"name": cluster, "down": True, "in_tier": parked})
