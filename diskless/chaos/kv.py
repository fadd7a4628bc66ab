"""Traffic on the store itself: several clients, a few keys, and a history for the oracle.

Clients meet on the same keys on purpose. A value is a number, and its bytes follow from it:
a read that gives other bytes than were written is wrong whatever the history says. An
operation that ends in an error which leaves its outcome open is noted as unknown; a family
of keys with several of those is left alone, because each of them multiplies what the oracle
must consider.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from diskless.chaos.oracle import UNKNOWN, Operation, Result, Value, check
from diskless.chaos.verdict import Findings
from diskless.chaos.workload import News
from diskless.client import Client
from diskless.config import KIB, MIB
from diskless.errors import (
    AlreadyExists,
    DeadlineExceeded,
    DisklessError,
    NoQuorum,
    NotFound,
    NotLeader,
    ShardsAway,
    Unavailable,
)

KEYS = ("a", "b", "c")
FAMILIES = 8
UNKNOWN_MAX = 3
"""Unknown outcomes after which a family is left for a new one."""
FAMILIES_MAX = 200
KEPT_MAX = 20
"""Keys of a family that are written once and then only read: what must outlive every fault."""
WEIGHTS = {"put": 28, "create": 10, "read": 40, "delete": 8, "rename": 10, "keep": 4}
SIZES = (
    (60, (0, 4 * KIB)),  # inline for good
    (25, (4 * KIB, 64 * KIB)),  # inline at first
    (12, (64 * KIB, MIB)),  # a stripe
    (3, (MIB, 3 * MIB)),  # several stripes
)
CLIENTS = 4
PACE_S = 0.02
"""Between two operations of a client: two cores must also restart agents."""
TAG_BYTES = 12
GONE_TRIES = 20
"""Reads of a file that is there and has no bytes, before that is held against the store. Once
it may have been replaced and freed meanwhile, which takes `free_delay`; not every time."""
SILENT_MAX = 2
"""Questions in a row without an answer, in the end, after which no more are asked."""
NO_ANSWER = (Unavailable, DeadlineExceeded, NotLeader)
_SILENT = tuple(f"{error.__name__}:" for error in (*NO_ANSWER, NoQuorum))


def sizes_up_to(largest: int) -> list[tuple[int, tuple[int, int]]]:
    """The usual mix of sizes, without those that are larger."""
    return [(weight, (low, min(high, largest))) for weight, (low, high) in SIZES if low < largest]


def value_bytes(value: Value, size: int) -> bytes:
    """Content that tells which write it is from, and where a byte of it is wrong."""
    tag = value.to_bytes(8) + size.to_bytes(4)
    return tag + Random(value).randbytes(size)


def read_value(data: bytes) -> Value | None:
    """The write that made these bytes; None if they are not what any write made."""
    value, size = int.from_bytes(data[:8]), int.from_bytes(data[8:TAG_BYTES])
    if len(data) != TAG_BYTES + size or data != value_bytes(value, size):
        return None
    return value


class Keys:
    """Which families are in use; shared by all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unknown: Counter[int] = Counter()
        self._open = list(range(FAMILIES))
        self._kept: Counter[int] = Counter()
        self.families = FAMILIES

    def choose(self, random: Random) -> int:
        with self._lock:
            return random.choice(self._open)

    def keep(self, family: int) -> str | None:
        """A key that nobody has used; None if the family has enough of those."""
        with self._lock:
            if self._kept[family] == KEPT_MAX:
                return None
            self._kept[family] += 1
            return f"kept-{self._kept[family]}"

    def of(self, family: int) -> list[str]:
        """All keys that were ever written."""
        return [*KEYS, *(f"kept-{number}" for number in range(1, self._kept[family] + 1))]

    def unclear(self, family: int) -> None:
        """Every few unknown outcomes a family is replaced, as long as there may be more."""
        with self._lock:
            self._unknown[family] += 1
            if self._unknown[family] < UNKNOWN_MAX or family not in self._open:
                return
            if self.families < FAMILIES_MAX:
                self._open[self._open.index(family)] = self.families
                self.families += 1


class KeyValue:
    """Implements workload.Workload."""

    unit = "operations"

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        seed: int,
        root: str,
        clients: int = CLIENTS,
        sizes: Sequence[tuple[int, tuple[int, int]]] = SIZES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._root = root
        self._sizes = sizes
        self._clock = clock
        self._randoms = [Random(f"{seed}/{number}") for number in range(clients)]
        self._keys = Keys()
        self._values = itertools.count(1)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._history: list[Operation] = []
        self._told = 0
        self._wrong: list[str] = []
        self._refusals: Counter[str] = Counter()
        self._broken: list[BaseException] = []

    def prepare(self) -> None:
        pass

    def start(self) -> None:
        for number, random in enumerate(self._randoms):
            thread = threading.Thread(
                target=self._work, args=(number, random), name=f"kv-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Returns when every operation under way has ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def news(self) -> News:
        with self._lock:
            fresh, self._told = self._history[self._told :], len(self._history)
        known = [operation for operation in fresh if operation.is_known]
        commits = [op for op in known if op.kind != "read"]
        return News(
            done=len(known),
            commits_ms=[1000 * (op.ended_s - op.began_s) for op in commits],
            errors=len(fresh) - len(known),
        )

    def finish(self) -> Findings:
        """Reads every key once more and asks the oracle. Call it after `stop`."""
        if self._broken:
            raise self._broken[0]
        unreadable = self._read_again()
        violations = check(self._history)
        return Findings(
            operations=len(self._history),
            acknowledged=sum(op.is_known for op in self._history),
            unknown=sum(not op.is_known and op.kind != "read" for op in self._history),
            refusals=dict(self._refusals),
            wrong=[*self._wrong, *(str(v) for v in violations if not v.undecided)],
            undecided=[str(violation) for violation in violations if violation.undecided],
            unreadable=unreadable,
        )

    def _read_again(self) -> list[str]:
        """Reads every key once more; gives those that cannot be read.

        Each would wait for its whole time on a cluster that does not answer any more.
        """
        unreadable: list[str] = []
        silent = 0
        keys = [(f, key) for f in range(self._keys.families) for key in self._keys.of(f)]
        try:
            with self._connect() as client:
                while keys and silent < SILENT_MAX:
                    family, key = keys.pop(0)
                    operation = self._read(client, family, key, number=-1)
                    if not operation.is_known:
                        unreadable.append(f"{self._path(family, key)}: {operation.note}")
                    silent = silent + 1 if operation.note.startswith(_SILENT) else 0
        except NO_ANSWER as error:
            self._refusals[error.reason] += 1
        left = [self._path(family, key) for family, key in keys]
        return unreadable + [f"{path}: not asked, nobody answers" for path in left]

    def clean_up(self, *, keep: bool) -> None:
        self.stop()
        if not keep:
            with self._connect() as client:
                client.delete(self._root, recursive=True)

    # One client.

    def _work(self, number: int, random: Random) -> None:
        try:
            with self._connect() as client:
                while not self._stop.is_set():
                    self._one(client, random, number)
                    self._stop.wait(random.uniform(0, 2 * PACE_S))
        except BaseException as error:  # noqa: BLE001 - `finish` raises it in the caller's thread
            self._broken.append(error)

    def _one(self, client: Client, random: Random, number: int) -> None:
        kind = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        family = self._keys.choose(random)
        key, target = random.sample(KEYS, 2)
        if kind == "keep":
            kind, key = "create", self._keys.keep(family) or key
        elif kind == "read":
            key = random.choice(self._keys.of(family))
        if kind == "read":
            self._read(client, family, key, number=number)
            return
        act, details = self._mutation(client, random, kind, family, key, target)
        self._do(act, kind=kind, family=family, key=key, client=number, **details)

    def _mutation(
        self, client: Client, random: Random, kind: str, family: int, key: str, target: str
    ) -> tuple[Callable[[], Result], dict[str, Any]]:
        """What to call, and what the oracle must know of it beside kind and key."""
        path = self._path(family, key)
        if kind == "delete":
            return partial(client.delete, path), {}
        if kind == "rename":
            return partial(_rename, client, path, self._path(family, target)), {"target": target}
        value = next(self._values)
        weights = [weight for weight, _ in self._sizes]
        low, high = random.choices([bounds for _, bounds in self._sizes], weights)[0]
        data = value_bytes(value, random.randint(low, high))
        return partial(_write, client, path, data, overwrite=kind == "put"), {"value": value}

    def _read(self, client: Client, family: int, key: str, *, number: int) -> Operation:
        path = self._path(family, key)

        def act() -> Result:
            try:
                data = _read_present(client, path)
            except NotFound as error:
                self._wrong.append(f"{path} is there, and its bytes are gone: {error}")
                raise
            if data is None:
                return None
            value = read_value(data)
            if value is None:
                self._wrong.append(f"wrong bytes in {path}: {len(data)}, from {data[:16].hex()}")
            return value

        return self._do(act, kind="read", family=family, key=key, client=number)

    def _do(self, act: Callable[[], Result], **what: Any) -> Operation:
        began_s = self._clock()
        result: Result | str
        try:
            result, note = act(), ""
        except DisklessError as error:
            result, note = UNKNOWN, f"{error.reason}: {error}"
            is_read = what["kind"] == "read"
            self._refusals[_why_unread(error) if is_read else error.reason] += 1
            if not is_read:
                self._keys.unclear(what["family"])
        operation = Operation(
            began_s=began_s, ended_s=self._clock(), result=result, note=note, **what
        )
        with self._lock:
            self._history.append(operation)
        return operation

    def _path(self, family: int, key: str) -> str:
        return f"{self._root}/{family}/{key}"


def _why_unread(error: DisklessError) -> str:
    """Why a read failed; bytes that did not arrive in time count as such. Those that a write
    waited for were never acknowledged."""
    cause = error.__cause__
    return cause.reason if isinstance(cause, ShardsAway) else error.reason


def _read_present(client: Client, path: str) -> bytes | None:
    """The content, or None if at some moment there was none.

    NotFound may also mean that the content was replaced, and freed, while it was read. Raises
    it when that cannot be why.
    """
    for attempt in range(1, GONE_TRIES + 1):
        try:
            return client.read(path)
        except NotFound:
            if not client.exists(path):
                return None
            if attempt == GONE_TRIES:
                raise
    raise AssertionError("unreachable")


def _write(client: Client, path: str, data: bytes, *, overwrite: bool) -> bool:
    try:
        client.write(path, data, overwrite=overwrite)
    except AlreadyExists:
        return False
    return True


def _rename(client: Client, source: str, target: str) -> bool:
    try:
        client.rename(source, target, overwrite=True)
    except NotFound:
        return False
    return True
