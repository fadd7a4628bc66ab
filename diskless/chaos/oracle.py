"""Whether a history of operations can be explained: linearizability, pure.

Keys come in families of a few, and a rename stays in its family; so each family is one
object, and a history is sound if each family's is (linearizability is local). Every value
is written once. An operation without a clear answer may have happened at any moment after
it began, or never. The search is Wing and Gong's: take, in every possible order, operations
that may be next in real time, and never look at the same situation twice. Since reads
after the end are part of the history, an acknowledged write that was lost, or that
happened again after a later one, leaves no order that explains them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf

from msgspec import Struct

SITUATIONS_MAX = 300_000
"""Of one family; beyond that its history is undecided. Real ones need a few for each
operation, unless many ended without an answer."""

Value = int
"""A write's number; 0 is never one."""
State = tuple[tuple[str, Value], ...]
"""The keys of a family that exist, sorted, and their values."""

Result = Value | bool | None
"""Of a read the value or None; of others whether they took effect."""

UNKNOWN = "unknown"
"""In place of a result."""


class Operation(Struct, frozen=True, kw_only=True):
    kind: str
    """put (replaces), create (does not), read, delete, rename (replaces)."""
    family: int
    key: str
    began_s: float
    ended_s: float = inf
    value: Value = 0
    target: str = ""
    """Where a rename goes."""
    result: Result | str = UNKNOWN
    """A put's and a rename's is True, a create's False if the key existed, a rename's False
    if there was no source, a delete's whether there was something."""
    note: str = ""
    """Why there is no result."""
    client: int = 0

    @property
    def is_known(self) -> bool:
        return self.result != UNKNOWN

    def __str__(self) -> str:
        what = f"{self.kind} {self.key}"
        if self.target:
            what += f" to {self.target}"
        if self.value:
            what += f" = #{self.value}"
        answer = f"-> {self.result}" if self.is_known else f"-> ? ({self.note or 'no answer'})"
        return f"[{self.began_s:.3f}, {self.ended_s:.3f}] client {self.client}: {what} {answer}"


class Violation(Struct, frozen=True):
    """A family whose history has no explanation, or, if `undecided`, whose search was given up."""

    family: int
    operation: Operation
    """The first answer, in order of time, that nothing explains."""
    context: tuple[Operation, ...]
    undecided: bool = False

    def __str__(self) -> str:
        verdict = "could not be decided" if self.undecided else "no order of operations explains"
        lines = [f"family {self.family}: {verdict} {self.operation}", "  after:"]
        return "\n".join([*lines, *(f"    {operation}" for operation in self.context)])


def check(history: Iterable[Operation]) -> list[Violation]:
    """The families whose histories are not linearizable; none if all is well."""
    families: dict[int, list[Operation]] = defaultdict(list)
    for operation in history:
        families[operation.family].append(operation)
    found = []
    for number in sorted(families):
        operations = [op for op in families[number] if op.is_known or op.kind != "read"]
        explained = _search(operations)
        if explained is not True:
            found.append(_explain(number, operations, undecided=explained is None))
    return found


def apply(state: State, operation: Operation) -> tuple[State, Result]:
    """What an operation does to a family, and what it answers."""
    keys = dict(state)
    answer: Result = True
    match operation.kind:
        case "read":
            return state, keys.get(operation.key)
        case "put":
            keys[operation.key] = operation.value
        case "create":
            answer = operation.key not in keys
            keys.setdefault(operation.key, operation.value)
        case "delete":
            answer = keys.pop(operation.key, None) is not None
        case "rename":
            answer = operation.key in keys
            if answer:
                keys[operation.target] = keys.pop(operation.key)
        case other:
            raise AssertionError(other)
    return tuple(sorted(keys.items())), answer


def _search(operations: Sequence[Operation]) -> bool | None:
    """Whether some order explains all answers; None if that is too much to find out.

    A situation is which answered operations were taken (all of `order` before `low`, and
    `ahead` of it), which unanswered ones, and the state. An unanswered one need not be taken,
    and is not where it would change nothing.
    """
    order = sorted((op for op in operations if op.is_known), key=lambda op: op.began_s)
    unclear = sorted((op for op in operations if not op.is_known), key=lambda op: op.began_s)
    none: frozenset[int] = frozenset()
    seen: set[tuple[int, frozenset[int], frozenset[int], State]] = set()
    stack: list[tuple[int, frozenset[int], frozenset[int], State]] = [(0, none, none, ())]
    while stack:
        low, ahead, taken, state = stack.pop()
        while low in ahead:
            ahead -= {low}
            low += 1
        if low == len(order):
            return True
        if (low, ahead, taken, state) in seen:
            continue
        seen.add((low, ahead, taken, state))
        if len(seen) > SITUATIONS_MAX:
            return None
        nexts, first_end_s = _possible_next(order, low, ahead)
        for number, operation in enumerate(unclear):
            if operation.began_s <= first_end_s and number not in taken:
                after, _ = apply(state, operation)
                if after != state:
                    stack.append((low, ahead, taken | {number}, after))
        # Taken last, tried first: the one that ended first is the likeliest to be next.
        for number in sorted(nexts, key=lambda n: -order[n].ended_s):
            after, answer = apply(state, order[number])
            if answer == order[number].result:
                stack.append((low, ahead | {number}, taken, after))
    return False


def _possible_next(
    order: Sequence[Operation], low: int, ahead: frozenset[int]
) -> tuple[list[int], float]:
    """Those that began before every other one that is left had ended, and that moment."""
    found: list[int] = []
    first_end_s = inf
    for number in range(low, len(order)):
        if order[number].began_s > first_end_s:
            break
        if number not in ahead:
            found.append(number)
            first_end_s = min(first_end_s, order[number].ended_s)
    return [number for number in found if order[number].began_s <= first_end_s], first_end_s


CONTEXT = 12


def _explain(family: int, operations: Sequence[Operation], *, undecided: bool) -> Violation:
    """Finds the first answer without which the history up to then had an explanation; of an
    undecided history the last: to search on would take as long again, time after time."""
    answers = sorted((op for op in operations if op.is_known), key=lambda op: op.ended_s)
    low, high = 0, len(answers) - 1  # The history up to answers[high] is unexplained.
    while low < high and not undecided:
        middle = (low + high) // 2
        if _search(_until(operations, answers[middle].ended_s)) is True:
            low = middle + 1
        else:
            high = middle
    culprit = answers[high]
    touched = {culprit.key, culprit.target or culprit.key}
    near = [
        op
        for op in sorted(operations, key=lambda op: op.began_s)
        if op is not culprit
        and op.began_s <= culprit.ended_s
        and touched & {op.key, op.target}
        and not (op.kind == "read" and op.ended_s < culprit.began_s)
    ]
    return Violation(family, culprit, tuple(near[-CONTEXT:]), undecided)


def _until(operations: Sequence[Operation], end_s: float) -> list[Operation]:
    """The history as it was known at a moment: later answers have not come yet."""
    return [
        op if op.ended_s <= end_s else _unanswered(op)
        for op in operations
        if op.began_s <= end_s and (op.ended_s <= end_s or op.kind != "read")
    ]


def _unanswered(operation: Operation) -> Operation:
    return Operation(
        kind=operation.kind,
        family=operation.family,
        key=operation.key,
        began_s=operation.began_s,
        value=operation.value,
        target=operation.target,
        client=operation.client,
    )
