"""Many files at once: the small ones in as few requests as hold them, the others one by one.

What comes is verified like any file that is read whole. A file that is refused is refused by
itself; what the agent has left out, for its size or another reason, is read the plain way.
"""

from collections.abc import Callable, Iterator, Sequence

from diskless.checksum import file_checksum
from diskless.client.caller import Caller
from diskless.client.fetch import PREFETCH_BYTES, verify
from diskless.errors import BadFrame, DisklessError
from diskless.protocol.messages import Kind, OpenMany, Status

FILES_MAX = 256
"""Of one request."""

Content = bytes | DisklessError


def read_many(
    caller: Caller, paths: Sequence[str], read: Callable[[str], bytes]
) -> Iterator[tuple[str, Content]]:
    """Each path, once, with its file's bytes or what it was refused with. `read` reads one by
    itself."""
    waiting = list(dict.fromkeys(paths))
    left_out: set[str] = set()
    while waiting:
        asked, waiting = waiting[:FILES_MAX], waiting[FILES_MAX:]
        again: list[str] = []
        for path, content, is_small in _ask(caller, asked):
            if content is not None:
                yield path, content
            elif is_small and path not in left_out:  # the reply may have been full
                left_out.add(path)
                again.append(path)
            else:
                yield path, _tried(read, path)
        waiting = again + waiting


def _ask(caller: Caller, paths: Sequence[str]) -> Iterator[tuple[str, Content | None, bool]]:
    """One request: of each file what came, and whether it is small."""
    what = f"read {paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else f"read {paths[0]}"
    try:
        reply = caller.call(Kind.OPEN_MANY, OpenMany(list(paths)), what=what)
    except BadFrame:  # an agent of an earlier release, which does not know of it
        yield from ((path, None, False) for path in paths)
        return
    view, at = memoryview(reply.payload), 0
    for path, one in zip(paths, reply.meta.files, strict=True):
        if one.file is None:
            yield path, one.refusal.error(), True
        elif one.here:
            data = bytes(view[at : at + one.file.size])
            at += one.file.size
            yield path, _checked(one.file, data), True
        else:
            yield path, None, one.file.size <= PREFETCH_BYTES


def _tried(read: Callable[[str], bytes], path: str) -> Content:
    try:
        return read(path)
    except DisklessError as error:
        return error


def _checked(status: Status, data: bytes) -> Content:
    try:
        verify(status, file_checksum(data))
    except DisklessError as error:
        return error
    return data
