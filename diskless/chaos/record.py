"""The faults that are planted in a cluster now, in a file beside its descriptor.

It outlives the process that planted them: a verb finds what another one did, and `heal`
what a run that was killed left behind. It is changed under a lock.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from diskless.chaos.budget import Active
from diskless.client.descriptor import faults_path


class _Content(Struct):
    cluster: str
    """Its id: a later cluster of the same name has no faults."""
    faults: list[Active] = []


class Page(list[Active]):
    """The faults, to be changed in place. `keep` before the fault, not after it: a command that is
    killed in between leaves a note of what may have been done."""

    def __init__(self, faults: list[Active], write: Callable[[list[Active]], None]) -> None:
        super().__init__(faults)
        self._kept = list(faults)
        self._write = write

    def keep(self) -> None:
        if self._kept != self:
            self._kept = list(self)
            self._write(self._kept)


class Record:
    def __init__(self, name: str, cluster: str) -> None:
        self._path = faults_path(name)
        self._cluster = cluster

    def read(self) -> list[Active]:
        with self.changing() as faults:
            return list(faults)

    @contextmanager
    def changing(self) -> Iterator[Page]:
        """For one at a time; kept when the block ends, also by an error."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

            def write(faults: list[Active]) -> None:
                file.seek(0)
                file.truncate()
                file.write(msgspec.json.encode(_Content(self._cluster, faults)))
                file.flush()

            page = Page(self._decode(file.read()).faults, write)
            try:
                yield page
            finally:
                page.keep()

    def _decode(self, data: bytes) -> _Content:
        try:
            content = msgspec.json.decode(data, type=_Content)
        except msgspec.DecodeError:
            return _Content(self._cluster)
        return content if content.cluster == self._cluster else _Content(self._cluster)
