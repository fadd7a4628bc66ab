"""What Spark writes into the files of a checkpoint, read. Pure: bytes in, values out.

A file of a log begins with a line like `v1`; what follows is JSON, a value in each line. What is
newer than what is known here is refused with `UnknownFormat`, never guessed.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from diskless.checkpoint.names import is_number
from diskless.errors import UnknownFormat

OFFSETS_VERSION = 1
COMMITS_VERSIONS = (1, 2, 3)
LIST_VERSION = 1
ZIP_METADATA = "metadata"
ZIP_METADATA_BYTES_MAX = 8 << 20
"""Of 150 bytes for each file of a version. More would be made of a few bytes, to fill memory."""
LONG_END = 2**63
"""What a number of Spark's stays below."""
_NONE = "-"
_NO_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError, RuntimeError, ValueError)
"""What is raised for a damaged one, of which a byte may ask for a password, or another method."""


class Offsets(NamedTuple):
    """The plan of a batch."""

    time_ms: int
    watermark_ms: int
    conf: Mapping[str, str]
    sources: tuple[Any, ...]
    """For each source where the batch ends; None where it has none."""

    @property
    def partitions(self) -> int | None:
        """How many partitions the state has in this batch."""
        value = self.conf.get("spark.sql.shuffle.partitions", "")
        return int(value) if is_number(value) else None

    @property
    def provider(self) -> str:
        """The short name of the class that keeps the state; empty if the plan has none."""
        name = self.conf.get("spark.sql.streaming.stateStore.providerClass", "")
        return name.rpartition(".")[2].removesuffix("StateStoreProvider")


class Operator(NamedTuple):
    number: int
    name: str
    stores: tuple[str, ...]
    partitions: int


Ids = Mapping[int, tuple[tuple[str, ...], ...]]
"""By operator and partition the ids of its stores' versions."""


def parse_query_id(data: bytes) -> str:
    """The id in a checkpoint's `metadata`."""
    return str(_object(data.decode(errors="replace"), "metadata").get("id", ""))


def parse_offsets(data: bytes, name: str) -> Offsets:
    lines = _lines(data, name, versions=(OFFSETS_VERSION,))
    head = _object(lines[0], name) if lines[0] not in (_NONE, "") else {}
    with _shaped(name):
        return Offsets(
            int(head.get("batchTimestampMs", 0)),
            int(head.get("batchWatermarkMs", 0)),
            {str(key): str(value) for key, value in (head.get("conf") or {}).items()},
            tuple(None if line == _NONE else _offset(line) for line in lines[1:]),
        )


def parse_commit(data: bytes, name: str) -> Ids:
    """The ids of the state that a commit names; none in the first format."""
    lines = _lines(data, name, versions=COMMITS_VERSIONS)
    head = _object(lines[0], name) if lines[0] else {}
    with _shaped(name):
        return {
            int(operator): tuple(tuple(map(str, stores)) for stores in partitions)
            for operator, partitions in (head.get("stateUniqueIds") or {}).items()
        }


def parse_entries(data: bytes, name: str) -> list[dict[str, Any]]:
    """The entries of a file source's or a file sink's log."""
    lines = _lines(data, name, versions=(LIST_VERSION,))
    return [_object(line, name) for line in lines if line]


def parse_operator(data: bytes, name: str) -> Operator:
    """`state/N/_metadata/metadata`, or an entry of `state/N/_metadata/v2`."""
    lines = _lines(data, name, versions=(1, 2))
    value = _object(lines[0], name)
    with _shaped(name):
        info, stores = value["operatorInfo"], value["stateStoreInfo"]
        return Operator(
            int(info["operatorId"]),
            str(info["operatorName"]),
            tuple(str(store["storeName"]) for store in stores),
            max((int(store["numPartitions"]) for store in stores), default=0),
        )


def parse_zip(data: bytes, name: str) -> list[str]:
    """The names in `SSTs/` that a version of RocksDB needs, which its zip names."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(ZIP_METADATA) as file:
            inside = file.read(ZIP_METADATA_BYTES_MAX + 1)
    except _NO_ZIP as error:
        raise UnknownFormat(f"{name} is no version of RocksDB: {error!r}") from error
    if len(inside) > ZIP_METADATA_BYTES_MAX:
        raise UnknownFormat(f"{name} is no version of RocksDB: its {ZIP_METADATA} is too large")
    value = _object(_lines(inside, name, versions=(1, 2))[0], name)
    with _shaped(name):
        return [str(file["dfsSstFileName"]) for file in value.get("sstFiles", ())]


def log_offset(value: Any) -> int | None:
    """Up to which entry of its own log a file source has come; None for other sources."""
    at = value.get("logOffset") if isinstance(value, dict) else None
    return int(at) if isinstance(at, int) and at < LONG_END else None


def _lines(data: bytes, name: str, *, versions: tuple[int, ...]) -> list[str]:
    """What follows the version of a file's format: one line at least."""
    head, _, rest = data.decode(errors="replace").partition("\n")
    number = head[1:].strip()
    if not (head.startswith("v") and is_number(number)):
        raise UnknownFormat(f"{name} does not begin with the version of its format")
    if number not in map(str, versions):
        raise UnknownFormat(f"{name} has format v{number}, which this version does not know")
    return rest.split("\n")


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnknownFormat(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnknownFormat(f"{name} has no object where one is needed")
    return value


@contextmanager
def _shaped(name: str) -> Iterator[None]:
    """Whatever is not as Spark writes it is a format that is not known."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UnknownFormat(f"{name} is not as Spark writes it: {error!r}") from error


def _offset(line: str) -> Any:
    """Sources write what they like: mostly JSON, or a number."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line
