"""`diskless put`: local files, trees and standard input into a cluster."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from diskless.cli import exits
from diskless.cli.listing import as_object, tally
from diskless.cli.transfer import STDIO, Meter, copy, is_directory, metered, run_all
from diskless.cli.verb import Context, Target, verb
from diskless.errors import BadRequest, PathIsDirectory

if TYPE_CHECKING:
    from diskless.client import Client
    from diskless.protocol.messages import Status


class Job(NamedTuple):
    source: Path | None
    """None is standard input."""
    path: str


@verb(
    "put",
    examples=(
        "diskless put model.bin /models/1",
        "diskless put -r checkpoint /checkpoints/",
        "tar c src | diskless put - /backup/src.tar",
    ),
    statuses=(
        exits.NOT_FOUND, exits.EXISTS, exits.WRONG_KIND, *exits.WRITING, *exits.ASKING,
    ),
)  # fmt: skip
@click.argument("sources", nargs=-1, required=True, metavar="LOCAL...")
@click.argument("target", metavar="TARGET")
@click.option("-r", "--recursive", is_flag=True, help="Directories with all that is in them.")
@click.option("-f", "--force", is_flag=True, help="Replace files that are there.")
def command(
    context: Context, sources: tuple[str, ...], target: str, recursive: bool, force: bool
) -> None:
    """Store local files, or standard input (-).

    Into TARGET if it is a directory or ends with a slash, else under that name. A file
    appears when all of it is stored, and then survives the loss of any k agents.
    """
    goal = context.target(target)
    _check_sources(sources, recursive)
    client = context.connect(goal)
    began_s = time.monotonic()
    plan = _plan(context, client, sources, goal)
    with metered("put", _total_bytes(sources)) as meter:

        def store(job: Job) -> "Status":
            return _store(client, job, meter, overwrite=force)

        stored = [
            as_object(status) | {"source": str(job.source or STDIO)}
            for job, status in run_all(store, plan, meter)
        ]
    context.say(f"stored {tally(stored, time.monotonic() - began_s)}")
    context.result(stored)


def _check_sources(sources: Iterable[str], recursive: bool) -> None:
    """Everything that can be refused before the first byte is sent."""
    for source in sources:
        if source == STDIO:
            continue
        os.stat(source)
        if os.path.isdir(source) and not recursive:
            raise PathIsDirectory(f"{source} is a directory: use -r")


def _plan(
    context: Context, client: "Client", sources: tuple[str, ...], goal: Target
) -> Iterator[Job]:
    """The files to store; directories are made on the way."""
    into = goal.means_directory or is_directory(client, goal.path)
    if not into and len(sources) > 1:
        raise BadRequest(f"{goal.path} is not a directory, and several files cannot have one name")
    for source in sources:
        if source == STDIO:
            if into:
                raise BadRequest(f"{goal.path} is a directory: name the file to store stdin in")
            yield Job(None, goal.path)
            continue
        path = goal.child(_base_name(source)) if into else goal.path
        if os.path.isdir(source):
            yield from _plan_tree(context, client, Path(source), path)
        else:
            yield Job(Path(source), path)


def _plan_tree(context: Context, client: "Client", top: Path, path: str) -> Iterator[Job]:
    for directory, names, files in os.walk(top, onerror=_raise):
        here = Path(directory)
        relative = here.relative_to(top)
        there = "/".join([path.rstrip("/"), *relative.parts]) or "/"
        names.sort()
        if not files and not names:
            client.mkdirs(there)
        for name in names:
            if (here / name).is_symlink():
                context.warn(f"diskless: skipped {here / name}: a link to a directory")
        for name in sorted(files):
            if (here / name).is_file():
                yield Job(here / name, f"{there.rstrip('/')}/{name}")
            else:
                context.warn(f"diskless: skipped {here / name}: not a regular file")


def _store(client: "Client", job: Job, meter: Meter, *, overwrite: bool) -> "Status":
    with _open(job.source) as data, client.open(job.path, "wb", overwrite=overwrite) as file:
        copy(data, file, meter)
    status: Status = file.status  # type: ignore[attr-defined]
    return status


def _open(source: Path | None) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if source is None else open(source, "rb")


def _total_bytes(sources: Iterable[str]) -> int | None:
    """What the bar goes up to; unknown with standard input."""
    total = 0
    for source in sources:
        if source == STDIO:
            return None
        if os.path.isdir(source):
            total += sum(_size(os.path.join(d, f)) for d, _, fs in os.walk(source) for f in fs)
        else:
            total += _size(source)
    return total


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # If it matters, opening it says so.


def _base_name(source: str) -> str:
    return Path(source).resolve().name


def _raise(error: OSError) -> None:
    raise error
