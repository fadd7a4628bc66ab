"""A cluster's private directory on one host: its agents' sockets, their keys and, for a Ray of
our own, Ray's files.

Owns `<temp>/diskless-<uid>/<cluster id>/`. Each host makes its own. It is 0700 and
belongs to this user, so nobody else can reach or forge a socket. It is not under
XDG_RUNTIME_DIR, which is emptied when the user logs out; the cluster continues then.
"""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from diskless.errors import LaunchFailed
from diskless.model import slot_name

ID_CHARS = 8
RUN_DIR_BYTES_MAX = 38
"""Ray puts sockets up to 66 bytes below its directory here, and AF_UNIX takes 107."""
MAKE_TRIES = 3
"""Another cluster's `down` may remove the parent directory between our two steps."""


def run_dir(cluster_id: str) -> Path:
    """Where it is; it may not exist yet."""
    name = f"diskless-{os.getuid()}"
    for root in (tempfile.gettempdir(), "/tmp"):
        path = Path(root) / name / cluster_id[:ID_CHARS]
        if len(os.fsencode(path)) <= RUN_DIR_BYTES_MAX:
            return path
    raise AssertionError("/tmp is always short enough")


def socket_path(cluster_id: str, slot: int) -> Path:
    return run_dir(cluster_id) / f"{slot_name(slot)}.sock"


def key_path(cluster_id: str) -> Path:
    """The file by which keys reach the agents of this host."""
    return run_dir(cluster_id) / "keys"


def make_run_dir(cluster_id: str) -> Path:
    """Makes the directory. Raises LaunchFailed if others could get at it."""
    path = run_dir(cluster_id)
    for tries_left in range(MAKE_TRIES, 0, -1):
        try:
            _make_private(path.parent)
            _make_private(path)
            break
        except FileNotFoundError:
            if tries_left == 1:
                raise
    return path


def clear_run_dir(cluster_id: str) -> None:
    """Removes it with all that is in it; nothing happens if it is not there."""
    path = run_dir(cluster_id)
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # Other clusters of this user are still in it.
        path.parent.rmdir()


def _make_private(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchFailed(
            f"{path} is not a private directory of this user: remove it, or set TMPDIR to "
            "a short path where it can be made"
        )
