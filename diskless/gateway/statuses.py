"""What clients see of a path."""

from diskless.errors import Forbidden
from diskless.model import FileRecord
from diskless.namespace.views import PathStatus
from diskless.protocol.messages import Status


def file_status(path: str, record: FileRecord) -> Status:
    return Status(path, False, record.size, record.mtime_ms, record.id, f"{record.checksum:016x}")


def way_status(found: PathStatus) -> Status:
    """Of what is above a token's paths. A file would be in their way, and is not its own."""
    if found.record is not None:
        raise Forbidden(f"{found.path} is a file, and not covered by the token")
    return path_status(found)


def path_status(found: PathStatus) -> Status:
    if found.record is None:
        return Status(found.path, True, 0, found.mtime_ms, 0, "")
    return file_status(found.path, found.record)
