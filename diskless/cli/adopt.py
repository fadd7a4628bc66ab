"""`diskless adopt`: another Ray for a cluster that outlived its own."""

import click

from diskless.cli import exits
from diskless.cli.meter import Meter
from diskless.cli.verb import Context, verb
from diskless.model import slot_name


@verb(
    "adopt",
    examples=("diskless adopt --ray-address 10.0.0.2:6380",),
    statuses=(*exits.ASKING, exits.LAUNCH_FAILED),
    through_client=False,
)
@click.option("--ray-address", required=True, metavar="HOST:PORT",
              help="The Ray that shall run the agents from now on.")  # fmt: skip
def command(context: Context, ray_address: str) -> None:
    """Run agents that are down on another Ray, and wait until all is protected.

    For a cluster on several hosts whose Ray head is lost for good: its agents continue, but
    nobody restarts them. Start a head at another address; then, host by host, end the old Ray
    node, join the new one, and run this. docs/hosts.md has the steps. Agents that are up are
    left alone.
    """
    name = context.cluster_name()
    from diskless.operate import adopt

    with Meter("starting", enabled=not context.json) as meter:
        started, strangers = adopt.adopt(
            name, ray_address, progress=lambda _, done, total: meter.left(total - done)
        )
    for slot in started:
        context.say(f"{slot_name(slot)} runs on the Ray at {ray_address}")
    if strangers:
        names = ", ".join(slot_name(slot) for slot in strangers)
        context.say(f"still without supervision: {names}")
    else:
        context.say(f"the Ray at {ray_address} restarts every agent that dies")
    context.result(
        {
            "adopted": [slot_name(slot) for slot in started],
            "unsupervised": [slot_name(slot) for slot in strangers],
        }
    )
