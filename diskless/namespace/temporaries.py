"""What clients make under a passing name, to be renamed soon: whose client died is reclaimed.

Two kinds are known, each by a name that nobody gives by chance. Spark's rename-based checkpoint
managers write `.NAME.UUID.tmp` and rename it; `diskless query` makes `.NAME.draft-UUID` by a
clone and puts it in NAME's place. Such a thing is reclaimed if it still is under that name, the
very one that was made, when the session that made it has ended: an hour after its client's last
mutation. So nothing goes that a living client may come back to, and nothing of any other name.

The notes are each replica's own, and not part of the state: one that got its state by transfer
knows of what was made since.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from diskless.namespace.tree import Directory, File, Node

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

NOTES_MAX = 4096
"""The oldest are forgotten beyond it."""
_HEX = "[0-9a-f]"
_SPARKS = re.compile(
    rf"\..+\.{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(\.TID\d+)?\.tmp",
    re.DOTALL,
)
_DRAFT = re.compile(rf"\..+\.draft-{_HEX}{{32}}", re.DOTALL)
"""A whole UUID: eight digits may be a date, in a name that somebody chose."""


class Note(NamedTuple):
    session: int
    file: int
    """Its id; 0 for a directory."""


class Temporaries:
    def __init__(self) -> None:
        self.by_path: dict[str, Note] = {}

    def put(self, path: str, session: int, file: int) -> None:
        """A file was put there."""
        if path.endswith(".tmp") and _SPARKS.fullmatch(path.rpartition("/")[2]):
            self._note(path, Note(session, file))

    def cloned(self, path: str, session: int) -> None:
        """A directory was cloned to there."""
        if _DRAFT.fullmatch(path.rpartition("/")[2]):
            self._note(path, Note(session, 0))

    def gone(self, path: str) -> None:
        """It was renamed or deleted."""
        self.by_path.pop(path, None)

    def left_behind(self, state: "NamespaceState", *, limit: int) -> list[str]:
        """What may go now. Notes of what has gone otherwise are dropped."""
        found: list[str] = []
        for path, note in list(self.by_path.items()):
            if len(found) == limit:
                break
            if not _is_still(state.tree.find(path), note):
                del self.by_path[path]
            elif state.sessions.is_over(note.session, elapsed_ms=state.elapsed_ms):
                found.append(path)
        return found

    def _note(self, path: str, note: Note) -> None:
        if len(self.by_path) >= NOTES_MAX:
            self.by_path.pop(next(iter(self.by_path)))
        self.by_path[path] = note


def _is_still(node: Node | None, note: Note) -> bool:
    if isinstance(node, File):
        return node.record.id == note.file
    return isinstance(node, Directory) and note.file == 0
