"""Where the logs of agents are, and what is in them.

Ray has an agent's output go to a file of its own choice, another one in each life. An agent notes
that file beside its socket when it starts, the newest last; so it is found on its host while it
runs and when it is dead, for as long as Ray leaves it there. `operate/log_reader.py` reads the
logs of other hosts by a Ray task on each. Nothing here writes to a log.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from diskless.launch import rundir
from diskless.model import slot_name

LIVES_MAX = 50
"""Of which an agent's note tells the files."""
READ_BYTES_MAX = 4 * 1024 * 1024
"""That are read at a time; of what was there before, the last so many."""

_BEGINS = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (\w+) ")
"""The first line of a record, which may have more: a traceback."""


class Record(NamedTuple):
    """What an agent said at one moment, on one line or several."""

    time: str
    level: str
    text: str


class Position(NamedTuple):
    """How far an agent's log has been read: the end of that file, in bytes."""

    path: str = ""
    offset: int = 0


UNREAD = Position()


def note(directory: Path, slot: int) -> None:
    """Notes where this process's errors go, for `diskless logs`."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return
    if not path.startswith("/") or not os.path.isfile(path):
        return  # a terminal or a pipe
    kept = [*_noted(directory, slot), path][-LIVES_MAX:]
    at = _note_path(directory, slot)
    fresh = at.with_suffix(".new")
    fresh.write_text("".join(f"{one}\n" for one in kept))
    os.replace(fresh, at)


def slots_here(cluster_id: str) -> list[int]:
    """Those whose logs are on this host."""
    found = rundir.run_dir(cluster_id).glob("agent-*.logs")
    return sorted(int(path.stem.removeprefix("agent-")) for path in found)


def read(
    cluster_id: str, slot: int, position: Position = UNREAD, bytes_max: int = READ_BYTES_MAX
) -> tuple[list[str], Position]:
    """The whole lines after a position, and the next position; from the newest so many bytes on
    if there is none. Runs on the agent's host."""
    paths = [path for path in _noted(rundir.run_dir(cluster_id), slot) if os.path.isfile(path)]
    if not paths:
        return [], position
    if not position.path:
        position = _back(paths, bytes_max)
    lines: list[str] = []
    for path in _from(paths, position.path):
        offset = position.offset if path == position.path else 0
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(bytes_max)
        whole = data[: data.rfind(b"\n") + 1]
        lines += whole.decode(errors="replace").splitlines()
        position = Position(path, offset + len(whole))
        if len(data) == bytes_max:
            break
    return lines, position


def records(lines: Iterable[str]) -> Iterator[Record]:
    """Lines that belong together, as one; what stands before the first is left out."""
    begun: Record | None = None
    for line in lines:
        found = _parse(line)
        if found is None:
            if begun is not None and begun.text.startswith("{"):
                yield begun  # an object is whole; what follows is of a library's
                begun = Record(begun.time, "INFO", line)
            elif begun is not None:
                begun = begun._replace(text=f"{begun.text}\n{line}")
            continue
        if begun is not None:
            yield begun
        begun = found
    if begun is not None:
        yield begun


def _parse(line: str) -> Record | None:
    if line.startswith("{"):
        with suppress(ValueError, KeyError, TypeError):
            fields = json.loads(line)
            return Record(str(fields["time"]), str(fields["level"]), line)
    found = _BEGINS.match(line)
    return Record(found[1], found[2], line) if found is not None else None


def _note_path(directory: Path, slot: int) -> Path:
    return directory / f"{slot_name(slot)}.logs"


def _noted(directory: Path, slot: int) -> list[str]:
    """The files of an agent's lives, the oldest first."""
    try:
        return list(dict.fromkeys(_note_path(directory, slot).read_text().splitlines()))
    except FileNotFoundError:
        return []


def _back(paths: Sequence[str], bytes_max: int) -> Position:
    """Where the last so many bytes of all files begin."""
    left = bytes_max
    for path in reversed(paths):
        size = os.path.getsize(path)
        if size >= left:
            return Position(path, size - left)
        left -= size
    return Position(paths[0], 0)


def _from(paths: Sequence[str], path: str) -> Sequence[str]:
    """That file and those of later lives; all if it is gone."""
    return paths[paths.index(path) :] if path in paths else paths
