"""Pictures of checkpoints in a cluster, and where they and the directories of file sinks are."""

from collections import deque
from collections.abc import Iterator

from diskless.checkpoint import names
from diskless.checkpoint.picture import FileInfo, Picture
from diskless.client import Client
from diskless.errors import CannotReturn, NotFound, PathIsFile
from diskless.protocol.messages import Status

ENTRIES_MAX = 1_000_000
"""Of one checkpoint: more is not looked at, and refused."""
SEARCH_ENTRIES_MAX = 100_000
"""Names that are looked at before a search below a path is given up."""
DRAFT = ".draft-"
"""In the names of directories that are being made ready."""


def take_picture(client: Client, path: str) -> Picture:
    """Of a checkpoint, or of one below `.snapshot`. Raises NotFound; CannotReturn for what is
    no checkpoint."""
    files = files_below(client, path)
    tops = {name.partition("/")[0] for name in files}
    if names.OFFSETS not in tops:
        raise CannotReturn(
            f"{path} is no checkpoint of a query: it has no {names.OFFSETS}/ with a batch in it"
        )
    return Picture(path, files, lambda name: client.read(f"{path}/{name}"))


def files_below(client: Client, top: str) -> dict[str, FileInfo]:
    """All files below a directory, by their paths from there."""
    found: dict[str, FileInfo] = {}
    start = len(top.rstrip("/")) + 1
    waiting = [top]
    while waiting:
        for entry in client.list(waiting.pop()):
            if entry.directory:
                waiting.append(entry.path)
            else:
                found[entry.path[start:]] = FileInfo(entry.size, entry.mtime_ms)
        if len(found) > ENTRIES_MAX:
            raise CannotReturn(f"{top} has more than {ENTRIES_MAX} files")
    return found


class Search:
    """The checkpoints and the file sinks at and below a directory, those nearest to it first."""

    def __init__(self, client: Client, top: str) -> None:
        self.checkpoints: list[str] = []
        self.sinks: list[str] = []
        self.complete = True
        """Whether everything was looked at."""
        waiting, left = deque([top]), SEARCH_ENTRIES_MAX
        while waiting and left > 0:
            path = waiting.popleft()
            below = []
            for entry in _entries(client, path):
                left -= 1
                if entry.directory and DRAFT not in entry.path:
                    below.append(entry.path)
                if left <= 0:
                    break
            inside = {name.rpartition("/")[2] for name in below}
            if {names.OFFSETS, names.COMMITS} <= inside:
                self.checkpoints.append(path)
                continue
            if names.SINK_LOG in inside:
                self.sinks.append(path)
                continue
            waiting.extend(below)
        self.complete = left > 0


def _entries(client: Client, path: str) -> Iterator[Status]:
    """Of a directory that may go while it is looked at."""
    try:
        yield from client.list(path)
    except (NotFound, PathIsFile):
        return


def sinks_of(client: Client, picture: Picture, sinks: list[str]) -> list[str]:
    """The file sinks that a query most likely writes to, of these: each entry of such a log was
    written after the plan of its batch and before its commit, by the clock of the cluster's log.
    """
    found = []
    for sink in sinks:
        times = sink_times(client, sink)
        pairs = [
            (picture.files[picture.offsets[batch]].mtime_ms, time_ms, picture.files[path].mtime_ms)
            for batch, path in picture.commits.items()
            if batch in picture.offsets and (time_ms := times.get(batch)) is not None
        ]
        if pairs and all(begin <= time_ms <= end for begin, time_ms, end in pairs):
            found.append(sink)
    return found


def sink_times(client: Client, sink: str) -> dict[int, int]:
    """When each batch was written to a file sink's log. A compact entry is of its own batch."""
    log = f"{sink.rstrip('/')}/{names.SINK_LOG}"
    return {
        entry.number: status.mtime_ms
        for status in _entries(client, log)
        if (entry := names.parse_log(status.path.rpartition("/")[2])) is not None
    }
