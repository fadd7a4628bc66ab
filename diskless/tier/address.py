"""The store at a tier's address.

Credentials come from the environment or from a file, in the library's own names
(AWS_ACCESS_KEY_ID, …). They are refused in an address, and are in no message.
"""

from pathlib import Path
from urllib.parse import urlsplit

from diskless.errors import BadSettings
from diskless.tier.files import FileStore
from diskless.tier.remote import RemoteStore, read_credentials
from diskless.tier.store import Metered

SCHEMES = ("file", "s3", "gs", "az")


def open_store(uri: str, *, credentials: Path | None = None) -> Metered:
    """The store at an address; asks nothing of it yet: see `store.check`.

    Raises BadSettings if the address or the file of credentials is no such thing.
    """
    check_uri(uri)
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Metered(FileStore(Path(parts.path)))
    return Metered(RemoteStore(uri, read_credentials(credentials) if credentials else {}))


def check_uri(uri: str) -> None:
    """Raises BadSettings, never with what could be a secret."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        good = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise BadSettings(
            f"a tier's address begins with one of {good}, not {parts.scheme or uri!r}"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadSettings(
            f"a tier's address ({parts.scheme}://…) holds no credentials and no options: set the "
            "environment variables of the store, or name a file of them"
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise BadSettings(f"a directory is named with three slashes, file:///dir, not {uri}")
    if parts.scheme != "file" and not parts.netloc:
        raise BadSettings(f"{uri} names no bucket: {parts.scheme}://bucket/prefix")
