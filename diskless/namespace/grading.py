"""What becomes of files' grades when they get other names.

A file's record keeps the grade that its path asked for when it was written (`policy.py`); a policy
that is set later changes nothing of what is there. A file that is moved or cloned gets the
priority of its new path, and as much parity as the old or the new one asks for, whichever is more.
If its stripes have less it is *thin*: the leader has it rewritten (`agent/leading/janitor.py`).
A directory's files are looked at one by one, so that is refused for a large one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from diskless import policy
from diskless.errors import BadRequest
from diskless.model import FileRecord
from diskless.namespace import btree
from diskless.namespace.btree import Leaf
from diskless.namespace.tree import Directory, File, Node
from diskless.policy import Grade

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

REGRADED_MAX = 1000
"""Entries of a directory that are looked at when it gets another name."""


def check_move(state: "NamespaceState", node: Node, source: str, target: str) -> None:
    """Raises BadRequest for a directory of too many files that have less parity than they would
    have to have at `target`."""
    if not isinstance(node, Directory) or not _differs(state, source, target):
        return
    if node.files + node.directories <= REGRADED_MAX or not node.files or state.trusts:
        return
    grades, k = state.policies.grades, state.parity_shards
    least = min(policy.parity_of(grade, k) for grade in grades.within(source))
    most = max(policy.parity_of(grade, k) for grade in grades.within(target))
    if least < most:
        raise BadRequest(
            f"{source} has {node.files} files, some with parity={least}, and {target} asks for "
            f"parity={most}: move them in parts of up to {REGRADED_MAX} entries, or rewrite them"
        )


def moved(state: "NamespaceState", node: Node, source: str, target: str) -> None:
    """To be told after a node was put at `target`, which was, or is, at `source` too."""
    if not _differs(state, source, target):
        return
    if isinstance(node, Directory) and node.files + node.directories > REGRADED_MAX:
        return
    for file, path in _files(node, target):
        regrade(state, file, state.policies.grades.at(path))


def _differs(state: "NamespaceState", source: str, target: str) -> bool:
    grades = state.policies.grades
    return bool(grades) and (
        grades.at(source) != grades.at(target)
        or len(grades.within(source)) > 1
        or len(grades.within(target)) > 1
    )


def regrade(state: "NamespaceState", file: File, asked: Grade) -> None:
    """Gives a file the priority that is asked for, and no less parity than it has."""
    record = file.record
    parity = policy.highest(record.grade, asked)
    grade = policy.with_priority(parity, policy.priority_of(asked))
    if grade == record.grade:
        return
    file.record = record = replace(record, grade=grade)
    if record.id in state.tier.cold:
        state.tier.rank(record)
    for extent in record.extents:
        state.ledger.prefer(extent.stripe, policy.priority_of(grade))
    if is_thin(state, record):
        state.thin[record.id] = None


def is_thin(state: "NamespaceState", record: FileRecord) -> bool:
    """Whether some of its stripes have less parity than its grade asks for."""
    asked = policy.parity_of(record.grade, state.parity_shards)
    return any(state.ledger.get(extent.stripe).parity_shards < asked for extent in record.extents)


def grade_all(state: "NamespaceState") -> None:
    """Gives every file the grade that its paths ask for now: the highest of all its names. Walks
    everything, if anything is asked for: for a state that serves nobody yet."""
    grades = state.policies.grades
    if not grades:
        return
    asked: dict[int, Grade] = {}
    seen: set[tuple[Any, Grade]] = set()
    tops = [(state.tree.root, "/"), *((one.root, one.path) for one in state.history.by_id.values())]
    for top, path in tops:
        for id_, found in _graded(grades, top, path, seen):
            asked[id_] = policy.highest(asked[id_], found) if id_ in asked else found
    for id_, grade in asked.items():
        file = state.files[id_]
        if grade != file.record.grade:
            file.record = replace(file.record, grade=grade)
            if id_ in state.tier.cold:
                state.tier.rank(file.record)


def _graded(
    grades: policy.Grades, top: Directory, path: str, seen: set[tuple[Any, Grade]]
) -> Iterator[tuple[int, Grade]]:
    """The ids of files below a path, with what is asked for there. Shared things below which one
    grade holds are `seen`, and are not walked again."""
    pending: list[tuple[Any, str, Grade | None]] = [(top, path, _only(grades, path))]
    while pending:
        thing, path, only = pending.pop()
        if type(thing) is File:
            yield thing.record.id, grades.at(path) if only is None else only
            continue
        if only is not None and thing.refs > 1:
            if (thing, only) in seen:
                continue
            seen.add((thing, only))
        if isinstance(thing, Leaf):
            above = path.rstrip("/") + "/"
            for name, child in thing.entries.items():
                named = above + name
                own = _only(grades, named) if only is None and type(child) is not File else only
                pending.append((child, named, own))
        else:
            below = (thing.node,) if isinstance(thing, Directory) else thing.children
            pending += [(one, path, only) for one in below]


def _only(grades: policy.Grades, path: str) -> Grade | None:
    """The grade that holds at a path and everywhere below it; None if there are several."""
    found = grades.within(path)
    return found.pop() if len(found) == 1 else None


def _files(node: Node, path: str) -> Iterator[tuple[File, str]]:
    """All files at and below a path."""
    pending: list[tuple[Node, str]] = [(node, path)]
    while pending:
        at, name = pending.pop()
        if isinstance(at, File):
            yield at, name
            continue
        above = name.rstrip("/") + "/"
        for leaf in btree.leaves(at.node):
            pending += [(child, above + part) for part, child in leaf.entries.items()]
