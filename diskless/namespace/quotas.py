"""How much paths with a quota hold, and what may still come there.

A quota counts bytes as `du` does: of all files below its path, of clones in full, and of each
snapshot that was taken there in full, for it may become the only one that holds them. Directories
keep sums and the table of snapshots does too, so to ask is one step, whatever is below. Only what
would hold more afterwards is refused: what frees, and what stays within, never is.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diskless.config import format_bytes
from diskless.errors import CapacityExceeded
from diskless.namespace.tree import size_of

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState

Growth = tuple[str, int]
"""A path, and by how many bytes more are there afterwards, or fewer."""


def used(state: "NamespaceState", path: str) -> int:
    node = state.tree.find(path)
    return (0 if node is None else size_of(node)) + state.history.bytes_held(path)


def check(state: "NamespaceState", growths: Iterable[Growth]) -> None:
    """Raises CapacityExceeded, with the quota and its path, if all of this together exceeds one.
    What is made again from a journal was allowed when it was made."""
    quotas = state.policies.quotas
    if not quotas or state.trusts:
        return
    more: dict[str, int] = {}
    about: dict[str, str] = {}
    for path, growth in growths:
        for above in at_or_above(path):
            if above in quotas:
                more[above] = more.get(above, 0) + growth
                if growth > 0:
                    about.setdefault(above, path)
    for above, growth in more.items():
        if growth <= 0:
            continue
        holds = used(state, above)
        if holds + growth > quotas[above]:
            raise CapacityExceeded(
                f"{about[above]}: the quota of {above} is {format_bytes(quotas[above])}, it holds "
                f"{format_bytes(holds)} and this is {format_bytes(growth)} more: delete files or "
                f"snapshots there, or raise it (`diskless policy set {above} quota=...`)"
            )


def at_or_above(path: str) -> Iterator[str]:
    while True:
        yield path
        if path == "/":
            return
        path = path[: path.rfind("/")] or "/"
