"""`diskless down`."""

import click

from diskless.cli import exits
from diskless.cli.verb import Context, verb


@verb(
    "down",
    examples=("diskless down", "diskless down --discard", "diskless down --cluster night"),
    through_client=False,
    statuses=(exits.NO_CLUSTER, exits.FILES_EXIST, exits.LAUNCH_FAILED),
)
@click.option("--discard", is_flag=True, help="Also if it holds files: they are lost.")
@click.option("--name", metavar="NAME", help="Name of the cluster; the same as --cluster.")
def command(context: Context, discard: bool, name: str | None) -> None:
    """End a cluster, with all that it holds.

    Every process, socket and file that `up` made is removed, but for audit files. It refuses
    when files exist, or when the cluster cannot say whether any do, unless --discard.
    """
    context.cluster = name or context.cluster
    cluster = context.cluster_name()
    from diskless.launch import ray_cluster

    ray_cluster.down(cluster, discard=discard)
    context.say(f"cluster {cluster} is down")
    context.result({"name": cluster, "down": True})
