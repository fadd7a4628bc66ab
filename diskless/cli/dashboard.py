"""`diskless dashboard`: the address of the page that agents serve, and the page itself."""

import secrets
import sys
import time
import webbrowser

import click

from diskless.cli import exits
from diskless.cli.times import NEVER, parse_expiry
from diskless.cli.verb import Context, verb
from diskless.errors import NotFound

EXPIRES = "12h"


@verb(
    "dashboard",
    examples=(
        "diskless dashboard",
        "diskless dashboard --no-open --expires 30d",
        "ssh -L 19470:127.0.0.1:19470 HOST diskless dashboard --no-open",
    ),
    statuses=(*exits.ASKING, exits.NOT_FOUND),
)
@click.option(
    "--open/--no-open", "opens", default=None, show_default="at a terminal",
    help="Open it in this machine's browser.",
)  # fmt: skip
@click.option(
    "--expires", default=EXPIRES, show_default=True, metavar=f"TIME|{NEVER}",
    help="How long the address is valid.",
)  # fmt: skip
def command(context: Context, opens: bool | None, expires: str) -> None:
    """Show the cluster on a page: whether it is safe, its agents, the last hour, queries, files.

    Every agent serves the page, on its host's loopback unless `up` had --metrics-open; so it
    is there with the leader and k agents dead. The address has a token in it that can read and
    change nothing, made for this and registered (`diskless token ls`); with a token of your own
    it has that. Anyone with the address sees what you see, so keep it like a password.
    """
    from diskless.client.descriptor import resolve

    client = context.connect()
    known = resolve(context.cluster_name())
    status = client.status()
    served = [agent.http for agent in status.agents if agent.http]
    if not served:
        raise NotFound(
            "no agent serves a page: the cluster was started with --metrics-port 0, or before "
            "there was one"
        )
    token = known.token
    if not token:
        expires_s = parse_expiry(expires, now_s=time.time())
        name = f"dashboard-{secrets.token_hex(3)}"
        made = known.keyring.client(name, paths=["/"], writes=False, expires_s=expires_s)
        client.register_token(made.claims)
        token = made.token
    addresses = [f"{address}/#token={token}" for address in served]
    context.say(addresses[0])
    context.result({"address": addresses[0], "addresses": addresses})
    if opens if opens is not None else sys.stdout.isatty() and not context.json:
        webbrowser.open(addresses[0])
