"""Paths of the namespace: absolute, `/`-separated, without tricks."""

from diskless.errors import BadRequest

PATH_BYTES_MAX = 4096
ROOT = "/"


def split(path: str) -> tuple[str, ...]:
    """The parts of an absolute path; the root has none. Raises BadRequest."""
    if not path.startswith("/"):
        raise BadRequest(f"{path!r} is not an absolute path: begin it with '/'")
    if len(path.encode(errors="surrogatepass")) > PATH_BYTES_MAX:
        raise BadRequest(f"path of {len(path)} characters: at most {PATH_BYTES_MAX} bytes")
    if path == ROOT:
        return ()
    parts = tuple(path[1:].split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise BadRequest(f"{path!r} has an empty, '.', '..' or NUL part")
    return parts


def join(parts: tuple[str, ...] | list[str]) -> str:
    return "/" + "/".join(parts)


def normalize(path: str) -> str:
    """What a person means by `a//b/` or `/a/b/`: for the edges, before `split`."""
    return "/" + "/".join(part for part in path.split("/") if part)
