"""The page itself: files of this package, which tell nothing and need no token."""

from pathlib import Path
from typing import NamedTuple

_HOME = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    content_type: str
    body: bytes


def load() -> dict[str, Asset]:
    """Every file of the page, by the path that it is served at."""
    found = {
        f"/{path.name}": Asset(_TYPES[path.suffix], path.read_bytes())
        for path in sorted(_HOME.iterdir())
    }
    return found | {"/": found["/index.html"]}
