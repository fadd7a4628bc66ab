"""`s3://`, `gs://`, `az://`: a bucket as a store of objects, through obstore.

Owns the table from the library's errors to ours. Its messages carry addresses and whole answers;
ours carry one line, and nothing that was a credential.
"""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import from_url
from typing_extensions import Buffer

from diskless.errors import BadSettings, NoSuchBucket, StoreDenied, StoreDown
from diskless.tier.form import total_bytes
from diskless.tier.store import Missing, Taken
from diskless.tier.work import aside

CONNECT_S = 5
ATTEMPT_S = 60
RETRIES_MAX = 2
RETRY_S = 10
_CREDENTIALS_BYTES_MAX = 64 * 1024

_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>|code: \"?([A-Za-z]+)")
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z -]+)")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "AccountNotFound"}
_DENIED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_UNFIT = (
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)


class RemoteStore:
    def __init__(self, uri: str, settings: Mapping[str, str]) -> None:
        """Raises BadSettings if the library cannot make a store of this."""
        self.uri = uri
        self._bucket = uri.partition("://")[2].partition("/")[0]
        options: Any = {
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "timeout": timedelta(seconds=ATTEMPT_S),
        }
        retry: Any = {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_S)}
        if _plain_http({**os.environ, **settings}):
            options["allow_http"] = True
        config: Any = {key.lower(): value for key, value in settings.items()}
        try:
            self._store: Any = from_url(
                uri, config=config, client_options=options, retry_config=retry
            )
        except exceptions.BaseError as error:
            raise BadSettings(f"{uri}: {_first_line(error)}") from None

    async def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        data = await aside(total_bytes(parts), b"".join, parts)
        try:
            await obstore.put_async(self._store, name, data, mode="create")
        except exceptions.AlreadyExistsError as error:
            if "BucketAlready" in str(error):
                raise self._translated(error, name) from None
            raise Taken(f"{self.uri} has {name} already") from None
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(error, name) from None

    async def get(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        if end is not None and end <= start:
            return memoryview(b"")
        options: Any = {}
        if start or end is not None:
            options["range"] = {"offset": start} if end is None else (start, end)
        try:
            result = await obstore.get_async(self._store, name, options=options)
            return memoryview(await result.bytes_async())
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(error, name) from None

    async def size(self, name: str) -> int:
        try:
            return (await obstore.head_async(self._store, name))["size"]
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(error, name) from None

    async def delete(self, name: str) -> None:
        try:
            await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            return
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(error, name) from None

    async def names(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        try:
            found = [
                entry["path"]
                async for batch in obstore.list(self._store, folder or None)
                for entry in batch
            ]
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(error, prefix) from None
        return sorted(name for name in found if name.startswith(prefix))

    async def settle(self, name: str) -> None:
        """What a server has acknowledged, or shown, is safe."""

    def _translated(self, error: Exception, name: str) -> Exception:
        text = str(error)
        code = next((a or b for a, b in _CODE.findall(text)), "")
        if code in _NO_BUCKET:
            return NoSuchBucket(f"{self.uri}: there is no bucket {self._bucket!r}")
        if isinstance(error, FileNotFoundError):
            return Missing(f"{self.uri} has no {name}")
        if isinstance(error, _DENIED) or code == "AccessDenied":
            return StoreDenied(
                f"{self.uri}: {name} was refused ({code or 'no rights'}): the credentials must be "
                "right, and allow to read, write, delete and list"
            )
        if code == "InvalidRange":
            return Missing(f"{self.uri} has no such bytes of {name}")
        if isinstance(error, _UNFIT):
            return StoreDenied(f"{self.uri}: {_first_line(error)}")
        status = _STATUS.search(text)
        why = code or (status and status[1].strip()) or _kind_of(text)
        return StoreDown(f"{self.uri} does not answer as it should ({why})")


def read_credentials(path: Path) -> dict[str, str]:
    """Lines of NAME=VALUE, in the library's names. Raises BadSettings, never with a value."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_CREDENTIALS_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise BadSettings(f"the tier's credentials {path}: {why}") from None
    if mode & 0o077:
        raise BadSettings(f"the tier's credentials {path} can be read by others: `chmod 600` it")
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise BadSettings(f"{path}, line {number} is not NAME=VALUE")
        found[name.strip()] = value.strip().strip("\"'")
    return found


def _plain_http(settings: Mapping[str, str]) -> bool:
    """Whether an endpoint without TLS is named, which is then meant."""
    return any(
        value.startswith("http://") and "ENDPOINT" in name.upper()
        for name, value in settings.items()
    )


def _kind_of(text: str) -> str:
    """Of an error below HTTP: the library hides the cause in its debug form."""
    found = re.search(r"kind: ([A-Z][a-z]+)", text)
    kind = found[1] if found else "Unknown"
    return {"Connect": "nobody listens there", "Timeout": "timed out"}.get(kind, kind)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
