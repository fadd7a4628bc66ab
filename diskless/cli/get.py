"""`diskless get`: files and trees of a cluster onto this machine, or to standard output."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from diskless.cli import exits
from diskless.cli.listing import as_object, tally
from diskless.cli.ls import walk
from diskless.cli.transfer import STDIO, Meter, copy, metered, new_local_file, run_all
from diskless.cli.verb import Context, Target, verb
from diskless.errors import AlreadyExists, BadRequest, PathIsDirectory

if TYPE_CHECKING:
    from diskless.client import Client
    from diskless.protocol.messages import Status


class Job(NamedTuple):
    status: "Status"
    local: Path


@verb(
    "get",
    examples=(
        "diskless get /models/1 model.bin",
        "diskless get -r /checkpoints .",
        "diskless get /backup/src.tar - | tar t",
    ),
    statuses=(
        exits.NOT_FOUND, exits.EXISTS, exits.WRONG_KIND, exits.UNREADABLE, *exits.ASKING,
        exits.BROKEN_PIPE,
    ),
)  # fmt: skip
@click.argument("sources", nargs=-1, required=True, metavar="PATH...")
@click.argument("local", metavar="LOCAL")
@click.option("-r", "--recursive", is_flag=True, help="Directories with all that is in them.")
@click.option("-f", "--force", is_flag=True, help="Replace local files that are there.")
def command(
    context: Context, sources: tuple[str, ...], local: str, recursive: bool, force: bool
) -> None:
    """Fetch files to this machine, or to standard output (-).

    Into LOCAL if it is a directory or ends with a slash, else under that name. A file
    appears when all of it has arrived and its checksum is right.
    """
    targets = context.targets(sources)
    if local == STDIO and context.json:
        raise BadRequest("`get … -` writes the files themselves to stdout: leave --json out")
    client = context.connect(*targets)
    found = [client.stat(target.path) for target in targets]
    for status in found:
        if status.directory and (not recursive or local == STDIO):
            raise PathIsDirectory(f"{status.path} is a directory: use -r, and a local directory")
    began_s = time.monotonic()
    with metered("get", _total_bytes(client, found)) as meter:
        if local == STDIO:
            _to_stdout(client, found, meter)
            return

        def fetch(job: Job) -> int:
            return _fetch(client, job, meter, force=force)

        plan = _plan(client, list(zip(targets, found, strict=True)), local)
        fetched = [
            as_object(job.status) | {"size": size, "local": str(job.local)}
            for job, size in run_all(fetch, plan, meter)
        ]
    context.say(f"fetched {tally(fetched, time.monotonic() - began_s)}")
    context.result(fetched)


def _to_stdout(client: "Client", found: Sequence["Status"], meter: Meter) -> None:
    for status in found:
        with client.open(status.path) as file:
            copy(file, sys.stdout.buffer, meter)
    sys.stdout.buffer.flush()


def _plan(
    client: "Client", sources: Sequence[tuple[Target, "Status"]], local: str
) -> Iterator[Job]:
    """The files to fetch; local directories are made on the way."""
    goal = Path(local)
    into = goal.is_dir() or local.endswith("/")
    if not into and len(sources) > 1:
        raise BadRequest(f"{local} is not a directory, and several files cannot have one name")
    if into:
        goal.mkdir(parents=True, exist_ok=True)
    for target, status in sources:
        to = goal / target.name if into and target.name else goal
        if status.directory:
            yield from _plan_tree(client, status.path, to)
        else:
            yield Job(status, to)


def _plan_tree(client: "Client", path: str, to: Path) -> Iterator[Job]:
    to.mkdir(parents=True, exist_ok=True)
    prefix = path.rstrip("/") + "/"
    for entry in walk(client, [path], recursive=True):
        local = to / entry.path.removeprefix(prefix)
        if entry.directory:
            local.mkdir(exist_ok=True)
        else:
            yield Job(entry, local)


def _fetch(client: "Client", job: Job, meter: Meter, *, force: bool) -> int:
    if job.local.is_file() and not force:
        raise AlreadyExists(f"{job.local} exists here already: use -f to replace it")
    with client.open(job.status.path) as source, new_local_file(job.local) as sink:
        return copy(source, sink, meter)


def _total_bytes(client: "Client", found: Sequence["Status"]) -> int | None:
    """What the bar goes up to. A summary costs a question, so only if there is a bar."""
    if not sys.stderr.isatty():
        return None
    return sum(client.summary(s.path).bytes if s.directory else s.size for s in found)
