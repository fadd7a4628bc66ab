"""How entries of the namespace are shown: a line for people, an object for programs."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from diskless.gateway.messages import Status


def as_object(status: "Status") -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(status)
    return found


def as_time(mtime_ms: int) -> str:
    return datetime.fromtimestamp(mtime_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def long_line(status: "Status") -> str:
    size = "-" if status.directory else str(status.size)
    return f"{size:>14}  {as_time(status.mtime_ms)}  {short_line(status)}"


def short_line(status: "Status") -> str:
    return status.path.rstrip("/") + "/" if status.directory else status.path
