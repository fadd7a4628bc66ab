"""The file by which keys reach the agents of a host: private to this user, replaced atomically.

It holds everything that an agent must know and nobody else may: the cluster's root key and,
with TLS, the authority that signs agents' certificates. Whatever others could have read or
written is refused, not repaired: it is no secret any more, or not ours.
"""

import os
import stat
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from diskless.errors import LaunchFailed
from diskless.identity.certificates import Pair

FILE_BYTES_MAX = 64 * 1024


class Keys(Struct, frozen=True, kw_only=True):
    """What the agents of one cluster share."""

    cluster: str
    name: str
    root: str
    """The root key, in hex."""
    authority: str = ""
    """The certificate that agents' certificates are signed with, as PEM; "" without TLS, or if
    the operator brings them."""
    authority_key: str = ""

    @property
    def signer(self) -> Pair:
        return Pair(self.authority.encode(), self.authority_key.encode())

    def __repr__(self) -> str:
        return f"Keys({self.name!r})"  # a key is in no log


def encode(keys: Keys) -> bytes:
    return msgspec.json.encode(keys)


def decode(data: bytes) -> Keys:
    """Raises ValueError."""
    return msgspec.json.decode(data, type=Keys)


def write(path: Path, keys: Keys) -> None:
    """Writes or replaces the file; its directory must be there."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # It is 0600.
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(encode(keys))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path, *, cluster: str) -> Keys | None:
    """None if there is no such file. Raises LaunchFailed if it is not fit to be believed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchFailed(f"{path} cannot be read ({error.strerror}): {_ADVICE}") from error
    with os.fdopen(handle, "rb") as file:
        _check_private(path, os.fstat(handle))
        data = file.read(FILE_BYTES_MAX)
    try:
        keys = decode(data)
    except ValueError as error:
        raise LaunchFailed(f"{path} holds no keys ({error}): {_ADVICE}") from None
    if keys.cluster != cluster:
        raise LaunchFailed(f"{path} is of another cluster: {_ADVICE}")
    return keys


_ADVICE = "remove it: it is written again"


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise LaunchFailed(f"{path} is no file: {_ADVICE}")
    if found.st_uid != os.geteuid():
        raise LaunchFailed(f"{path} belongs to user {found.st_uid}, not to this one: {_ADVICE}")
    if found.st_mode & 0o077:
        raise LaunchFailed(
            f"{path} can be read or written by others (mode {found.st_mode & 0o777:o}): what is in "
            "it may be known to them. If that may be so, start another cluster; else `chmod 600` it"
        )
