"""How entries of the namespace are shown: a line for people, an object for programs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from diskless.config import format_bytes

if TYPE_CHECKING:
    from diskless.protocol.messages import Status

WIDTH_MAX = 200
"""Where there is no terminal to fit in."""


def console() -> Any:
    """Where tables go."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = WIDTH_MAX
    return made


def as_object(status: "Status") -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(status)
    return found


def tally(files: Sequence[Mapping[str, Any]], took_s: float) -> str:
    """`3 files, 1.2 MiB, in 0.4 s`."""
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    size = sum(file["size"] for file in files)
    return f"{count}, {format_bytes(size)}, in {took_s:.1f} s"


def as_time(mtime_ms: int) -> str:
    return datetime.fromtimestamp(mtime_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def long_line(status: "Status") -> str:
    size = "-" if status.directory else str(status.size)
    return f"{size:>14}  {as_time(status.mtime_ms)}  {short_line(status)}"


def short_line(status: "Status") -> str:
    return status.path.rstrip("/") + "/" if status.directory else status.path
