"""The table of policies: what was asked for by path.

The table is replaced with every change and never changed itself, so a reference to it is
what was asked for at one moment.
"""

from collections.abc import Iterable, Iterator

import msgspec
from xxhash import xxh3_64_intdigest

from diskless import paths, policy
from diskless.config import parse_bytes
from diskless.errors import CapacityExceeded
from diskless.namespace.weights import policy_bytes
from diskless.policy import Effective

POLICIES_MAX = 1024
"""Paths that have some: the table is copied with each change."""


class Policies:
    def __init__(self) -> None:
        self.table: dict[str, dict[str, str]] = {}
        self.bytes_used = 0
        self.grades = policy.NO_GRADES
        self.grades_mark = 0
        """Of the grades as they are: the same for the same ones; 0 for none."""
        self.quotas: dict[str, int] = {}
        """In bytes, by path."""
        self.barriers = False
        """Whether any path asks for `barrier`."""

    def __len__(self) -> int:
        return len(self.table)

    def durability(self, path: str, *, default: str) -> str:
        """What a path asks for; with no policies at all that is one question."""
        if not self.table:
            return default
        return policy.effective(self.table, path, policy.DURABILITY, default=default).value

    def effective(self, path: str, key: str, *, default: str) -> Effective:
        return policy.effective(self.table, path, key, default=default)

    def asks_for_memory(self, *, default: str) -> bool:
        """Whether any path at all does."""
        return asks_for_memory(self.table, default=default)

    def first_with(self, key: str, value: str) -> str:
        """Some path that asks for it; empty if none does."""
        return next((path for path, own in self.table.items() if own.get(key) == value), "")

    def all_with(self, key: str, value: str) -> list[str]:
        """All of them: at most `POLICIES_MAX`."""
        return [path for path, own in self.table.items() if own.get(key) == value]

    def below(self, path: str, key: str) -> Iterator[str]:
        """What paths below this one ask for."""
        above = path.rstrip("/") + "/"
        for other, own in self.table.items():
            if key in own and other.startswith(above):
                yield own[key]

    def check_new(self, path: str) -> None:
        """Raises why no policy can be set on a path."""
        paths.split(path)
        paths.check_writable(path)
        if path not in self.table and len(self.table) >= POLICIES_MAX:
            raise CapacityExceeded(
                f"{path}: {len(self.table)} paths have policies and {POLICIES_MAX} may: "
                "remove some, or set one on a directory above"
            )

    def set(self, path: str, key: str, value: str) -> bool:
        """Whether that changed anything."""
        own = self.table.get(path, {})
        if own.get(key) == value:
            return False
        self._replace({**self.table, path: {**own, key: value}})
        return True

    def remove(self, path: str, key: str) -> int:
        """How many a path lost: all that it has if `key` is empty."""
        own = self.table.get(path, {})
        left = {name: value for name, value in own.items() if key and name != key}
        if len(left) == len(own):
            return 0
        table = {**self.table, path: left}
        if not left:
            del table[path]
        self._replace(table)
        return len(own) - len(left)

    def restore(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Takes in rows of (path, key, value), in the order that they had."""
        table = {path: dict(own) for path, own in self.table.items()}
        for path, key, value in rows:
            table.setdefault(path, {})[key] = value
        self._replace(table)

    def _replace(self, table: dict[str, dict[str, str]]) -> None:
        self.table = table
        self.bytes_used = sum(policy_bytes(path, own) for path, own in table.items())
        self.quotas = {
            path: parse_bytes(own[policy.QUOTA])
            for path, own in table.items()
            if policy.QUOTA in own
        }
        grades = policy.Grades.of(table)
        if grades.rows != self.grades.rows:
            self.grades, self.grades_mark = grades, mark_of(grades)
        self.barriers = bool(self.first_with(policy.DURABILITY, policy.BARRIER))


def asks_for_memory(table: policy.Table, *, default: str) -> bool:
    asked = (own.get(policy.DURABILITY) for own in table.values())
    return default == policy.MEMORY or policy.MEMORY in asked


def mark_of(grades: policy.Grades) -> int:
    return xxh3_64_intdigest(msgspec.msgpack.encode(sorted(grades.rows))) if grades else 0


def rows_of(table: policy.Table) -> list[tuple[str, str, str]]:
    return [(path, key, value) for path, own in table.items() for key, value in own.items()]
