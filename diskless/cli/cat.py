"""`diskless cat`."""

import base64
import json
import os
import sys
from typing import IO, TYPE_CHECKING

import click

from diskless.cli import exits
from diskless.cli.transfer import copy
from diskless.cli.verb import Context, verb

if TYPE_CHECKING:
    from diskless.client import Client

BASE64_STEP_BYTES = 3 * 256 * 1024
"""A multiple of three, so that the encoded pieces may be joined."""


@verb(
    "cat",
    examples=("diskless cat /notes.txt", "diskless cat /part-0 /part-1 | wc -c"),
    statuses=(
        exits.NOT_FOUND, exits.WRONG_KIND, exits.UNREADABLE, *exits.ASKING, exits.BROKEN_PIPE,
    ),
)  # fmt: skip
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def command(context: Context, paths: tuple[str, ...]) -> None:
    """Write files to standard output, one after the other.

    With --json: [{"path", "size", "base64"}].
    """
    targets = context.targets(paths)
    client = context.connect(*targets)
    separator = "["
    for target in targets:
        if context.json:
            sys.stdout.write(separator)
            _write_json(client, target.path)
            separator = ","
        else:
            with client.open(target.path) as file:
                copy(file, sys.stdout.buffer)
    sys.stdout.write("]\n" if context.json else "")


def _write_json(client: "Client", path: str) -> None:
    """Piece by piece: a large file need not fit in memory here either."""
    with client.open(path) as file:
        head = {"path": path, "size": file.seek(0, os.SEEK_END)}
        file.seek(0)
        sys.stdout.write(json.dumps(head)[:-1] + ', "base64": "')
        _write_base64(file)
        sys.stdout.write('"}')


def _write_base64(file: IO[bytes]) -> None:
    while piece := file.read(BASE64_STEP_BYTES):
        sys.stdout.write(base64.b64encode(piece).decode())
