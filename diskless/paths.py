"""Paths of the namespace: absolute, `/`-separated, without tricks."""

from collections.abc import Iterable
from functools import lru_cache

from diskless.errors import BadRequest, ReadOnly

PATH_BYTES_MAX = 4096
ROOT = "/"
SNAPSHOTS = ".snapshot"
"""The directory below each that has its snapshots, as in HDFS: it can be read alone."""
BELOW = f"/{SNAPSHOTS}"
"""In every path that leads to snapshots, and in hardly any other."""


_REFUSED = frozenset(("", ".", ".."))
_REMEMBERED = 512
"""A path is asked for a few times while it is written or read, and seldom later. All agents of a
process share what is remembered, and each counts it as its own."""
_REMEMBERED_CHARS_MAX = 256
"""Longer paths are not remembered: thousands of them would take tens of MiB."""
SPLIT_BYTES = 640
"""What a path of usual length takes that is remembered with its parts."""


def split(path: str) -> tuple[str, ...]:
    """The parts of an absolute path; the root has none. Raises BadRequest."""
    return _split_known(path) if len(path) <= _REMEMBERED_CHARS_MAX else _split(path)


def bytes_remembered() -> int:
    """What the paths take that this process remembers."""
    return SPLIT_BYTES * _split_known.cache_info().currsize


def _split(path: str) -> tuple[str, ...]:
    if not path.startswith("/"):
        raise BadRequest(f"{path!r} is not an absolute path: begin it with '/'")
    if len(path.encode(errors="surrogatepass")) > PATH_BYTES_MAX:
        raise BadRequest(f"path of {len(path)} characters: at most {PATH_BYTES_MAX} bytes")
    if path == ROOT:
        return ()
    parts = tuple(path[1:].split("/"))
    if "\0" in path or not _REFUSED.isdisjoint(parts):
        raise BadRequest(f"{path!r} has an empty, '.', '..' or NUL part")
    return parts


_split_known = lru_cache(maxsize=_REMEMBERED)(_split)


def leads_to_snapshots(path: str) -> bool:
    """Whether one of a path's parts is the name under which snapshots are read."""
    return BELOW in path and SNAPSHOTS in split(path)


def check_writable(path: str) -> None:
    """Raises ReadOnly for a path at or below a directory's snapshots."""
    if BELOW in path and SNAPSHOTS in split(path):
        raise ReadOnly(f"{path}: what is at or below {SNAPSHOTS} can only be read")


def join(parts: tuple[str, ...] | list[str]) -> str:
    return "/" + "/".join(parts)


def above(names: Iterable[str]) -> set[str]:
    """All directories on the way to these paths, but the root."""
    found: set[str] = set()
    for name in names:
        directory = name.rpartition("/")[0]
        while directory and directory not in found:
            found.add(directory)
            directory = directory.rpartition("/")[0]
    return found


def normalize(path: str) -> str:
    """What a person means by `a//b/` or `/a/b/`: for the edges, before `split`."""
    return "/" + "/".join(part for part in path.split("/") if part)
