"""A store of one dict, and stores that break one promise each: what the oracle must catch."""

import threading
import time
from contextlib import suppress
from random import Random

from diskless.errors import AlreadyExists, DeadlineExceeded, NotFound, ShardsAway, Unavailable

LATENCY_S = 0.001


class FakeStore:
    """As much of a Client as the kv workload uses; one for all its threads."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.writes = 0
        self.steps = 0
        self._lock = threading.Lock()
        self._random = Random(1)

    def __enter__(self) -> "FakeStore":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, path: str) -> bytes:
        return self._step(lambda: self._get(path))

    def exists(self, path: str) -> bool:
        return self._step(lambda: path in self.files)

    def write(self, path: str, data: bytes, *, overwrite: bool) -> None:
        self._step(lambda: self._put(path, data, overwrite))

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        assert overwrite
        self._step(lambda: self._move(source, target))

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        if recursive:
            self.files = {p: d for p, d in self.files.items() if not p.startswith(path + "/")}
            return True
        return self._step(lambda: self.files.pop(path, None) is not None)

    # What mutants change.

    def _get(self, path: str) -> bytes:
        if path not in self.files:
            raise NotFound(path)
        return self.files[path]

    def _put(self, path: str, data: bytes, overwrite: bool) -> None:
        if path in self.files and not overwrite:
            raise AlreadyExists(path)
        self.writes += 1
        self.files[path] = data

    def _move(self, source: str, target: str) -> None:
        self.files[target] = self._get(source)
        del self.files[source]

    def _step(self, act):  # type: ignore[no-untyped-def]
        """Takes effect at one moment between the call and its return."""
        time.sleep(self._random.uniform(0, LATENCY_S))
        with self._lock:
            self.steps += 1
            answer = act()
        time.sleep(self._random.uniform(0, LATENCY_S))
        return answer


class Forgetful(FakeStore):
    """Acknowledges every tenth write and does not do it."""

    def _put(self, path: str, data: bytes, overwrite: bool) -> None:
        before = self.files.get(path)
        super()._put(path, data, overwrite)
        if self.writes % 10 == 0:
            del self.files[path]
            if before is not None:
                self.files[path] = before


class Twice(FakeStore):
    """Does a write again after later ones, as a retry that nobody recognizes."""

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, bytes] = {}

    def _put(self, path: str, data: bytes, overwrite: bool) -> None:
        super()._put(path, data, overwrite)
        old, self._old[path] = self._old.get(path), data
        if self.writes % 10 == 0 and old is not None:
            self.files[path] = old


class Garbling(FakeStore):
    """Gives a wrong byte now and then."""

    def _get(self, path: str) -> bytes:
        data = super()._get(path)
        if len(data) % 7 == 3:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


class HalfRenaming(FakeStore):
    """Leaves the source of a rename where it was."""

    def _move(self, source: str, target: str) -> None:
        self.files[target] = self._get(source)


class Unclear(FakeStore):
    """Sound, but does not always say what became of a mutation."""

    def _put(self, path: str, data: bytes, overwrite: bool) -> None:
        if self._random.random() < 0.05:
            if self._random.random() < 0.5:
                with suppress(AlreadyExists):
                    super()._put(path, data, overwrite)
            raise Unavailable("no answer")
        super()._put(path, data, overwrite)


class Hollow(FakeStore):
    """Has the file, and has freed its bytes."""

    def _get(self, path: str) -> bytes:
        data = super()._get(path)
        if len(data) % 7 == 3:
            raise NotFound(f"{path}: its bytes were deleted or replaced and have been freed")
        return data


class Dying(FakeStore):
    """Sound until it is dead; then it answers nothing, each time after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = False
        self.asked_in_vain = 0

    def _step(self, act):  # type: ignore[no-untyped-def]
        if self.dead:
            self.asked_in_vain += 1
            raise DeadlineExceeded("gave up")
        return super()._step(act)


class Waiting(FakeStore):
    """Sound, but waits in vain for the agents that hold some of its bytes."""

    def read(self, path: str) -> bytes:
        data = super().read(path)
        if len(data) % 7 == 3:
            raise DeadlineExceeded("gave up") from ShardsAway("3 of 4 required shards readable")
        return data


class SlowToSeal(FakeStore):
    """Sound, but some of its uploads wait in vain for agents that hold parts of them."""

    def _put(self, path: str, data: bytes, overwrite: bool) -> None:
        if len(data) % 7 == 3:
            raise DeadlineExceeded("gave up") from ShardsAway("3 of 4 required shards readable")
        super()._put(path, data, overwrite)
