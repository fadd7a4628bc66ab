"""`diskless token`: create, ls, revoke."""

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from diskless.cli import exits
from diskless.cli.listing import as_time
from diskless.cli.times import NEVER, parse_expiry
from diskless.cli.verb import Context, verb
from diskless.errors import BadRequest

if TYPE_CHECKING:
    from diskless.protocol.tokens import TokenInfo

EXPIRES = "30d"
SUFFIX_BYTES = 3
NAME_CHARS = 40
"""That a path gives to a name which is made up; random digits follow."""


@click.group("token", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Give clients keys of their own, for some paths, until some time.

    Every agent can judge a token alone. A token that must no longer be used is
    revoked: all agents know it within a heartbeat, and end its connections. All of this needs
    the key of the cluster, which is in the descriptor of the user who started it.
    """


@verb(
    "create",
    examples=(
        "diskless token create --path /checkpoints/q1 --rights rw --expires 30d > q1.token",
        "diskless token create --path /checkpoints --rights r --name dashboard --expires never",
        "export DISKLESS_TOKEN=$(diskless token create --path /checkpoints/q1 --rights rw)",
    ),
    statuses=(exits.EXISTS, exits.NO_ROOM, *exits.ASKING),
)
@click.option(
    "--path", "chosen", multiple=True, required=True, metavar="PATH",
    help="What it is for, with all below; may be repeated.",
)  # fmt: skip
@click.option(
    "--rights", type=click.Choice(["r", "rw"]), required=True, help="To read, or also to write."
)
@click.option(
    "--expires", default=EXPIRES, show_default=True, metavar=f"TIME|{NEVER}",
    help="How long it is valid: 30d, 12h, 90m.",
)  # fmt: skip
@click.option(
    "--name", default="", help="For the audit and to revoke it by; made up if it is left out."
)
def create(context: Context, chosen: Sequence[str], rights: str, expires: str, name: str) -> None:
    """Make a token, register it in the cluster's log, and print it.

    Standard output has the token and nothing else. It is not stored anywhere: what the
    cluster keeps is its name, paths, rights and expiry. Anyone who has the token can use it, so
    keep it like a password.
    """
    from diskless.client.descriptor import resolve

    targets = context.targets(chosen)
    expires_s = parse_expiry(expires, now_s=time.time())
    own = list(dict.fromkeys(target.path for target in targets))
    descriptor = resolve(targets[0].cluster)
    keyring = descriptor.keyring
    if not keyring.cluster:
        raise BadRequest("a token is made from a cluster's descriptor: HOST:PORT does not do")
    made = keyring.client(
        name or _name_for(own[0]), paths=own, writes=rights == "rw", expires_s=expires_s
    )
    context.connect(*targets).register_token(made.claims)
    context.say(made.token)
    context.result(
        {
            "name": made.claims.name,
            "token": made.token,
            "paths": own,
            "rights": rights,
            "expires_s": expires_s,
        }
    )


@verb("ls", examples=("diskless token ls", "diskless token ls --json"), statuses=exits.ASKING)
def list_(context: Context) -> None:
    """List the tokens that were registered, and the names that were revoked.

    A line has the name, whether it is valid, expired or revoked, its rights, when it expires,
    and its paths. One that expired is forgotten a day later, and so is its revocation; a name
    that was revoked and never registered stays.
    """
    found = context.connect().tokens()
    now_s = time.time()
    if context.json:
        context.results(
            {**msgspec.to_builtins(one), "rights": one.rights, "state": one.state(now_s)}
            for one in found
        )
        return
    for one in found:
        context.say(line(one, now_s))


@verb(
    "revoke",
    examples=("diskless token revoke q1", "diskless token revoke q1-3f09ac dashboard"),
    statuses=exits.ASKING,
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def revoke(context: Context, names: Sequence[str]) -> None:
    """Make tokens invalid, by their names, registered or not.

    Every token of that name is meant. It cannot be taken back: a new token needs a new name.
    """
    client = context.connect()
    answers = []
    for name in names:
        answer = client.revoke_token(name)
        context.say(f"{name} revoked" if answer.revoked else f"{name} was revoked before")
        if not answer.registered:
            context.warn(f"diskless: no token {name} was registered; its name is revoked for good")
        answers.append({"name": name, **msgspec.to_builtins(answer)})
    context.result(answers)


def line(token: "TokenInfo", now_s: float) -> str:
    # A path may contain anything, line ends among them.
    own = " ".join(token.paths) or "-"
    text = "".join(char if char.isprintable() else "?" for char in own)
    until = as_time(1000 * token.expires_s) if token.expires_s else NEVER
    return (
        f"{token.name:<24}  {token.state(now_s):<7}  {token.rights or '-':<2}  {until:<19}  {text}"
    )


def _name_for(path: str) -> str:
    """A name that tells what the token is for."""
    last = path.rpartition("/")[2]
    plain = "".join(char for char in last if char.isascii() and char.isalnum())[:NAME_CHARS]
    return f"{plain or 'token'}-{secrets.token_hex(SUFFIX_BYTES)}"


for made in (create, list_, revoke):
    command.add_command(made)
