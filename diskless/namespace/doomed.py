"""What deletes have detached and nobody has taken apart yet.

A delete takes a directory out of the tree in one step, or a snapshot out of its table, and
from then on no path leads to what was below it. Its files still hold memory and stripes, and
giving up a million of them takes seconds; so they wait here, and `sweep` takes apart a bounded
number at a time. It goes down only into what nothing else points to, by the counts of
`btree.py`; what is shared has one holder less. All of it is replicated: the same commands
sweep the same files everywhere.
"""

from msgspec import Struct

from diskless.model import FileRecord
from diskless.namespace.btree import Counts, Inner, Leaf, in_order
from diskless.namespace.tree import Directory, File
from diskless.namespace.weights import name_bytes


class Job(Struct, eq=False, gc=False):
    """What is left of one directory that was detached."""

    pending: list[Directory | Leaf | Inner]
    """To each it holds one reference. The last is taken apart first."""
    files: int
    """That may be below: what is shared leaves more of them than are swept."""


class Doomed:
    def __init__(self, counts: Counts) -> None:
        self.jobs: list[Job] = []
        """The last one is done first."""
        self.files = 0
        self._counts = counts

    def __bool__(self) -> bool:
        return bool(self.jobs)

    def add(self, directory: Directory) -> bool:
        """Takes over a reference to a directory; whether that leaves something to sweep."""
        if directory.refs > 1:
            directory.refs -= 1
            return False
        self.restore(Job([directory], directory.files))
        return True

    def restore(self, job: Job) -> None:
        self.jobs.append(job)
        self.files += job.files

    def sweep(self, limit: int) -> list[FileRecord]:
        """Takes `limit` things apart, or all that are left; returns the records of files that
        have no name any more."""
        gone: list[FileRecord] = []
        while self.jobs and limit > 0:
            limit -= self._advance(self.jobs[-1], limit, gone)
        return gone

    def finish(self) -> list[FileRecord]:
        """As `sweep`, for all that was added last."""
        gone: list[FileRecord] = []
        others = len(self.jobs) - 1
        while len(self.jobs) > others:
            self._advance(self.jobs[-1], 1 << 30, gone)
        return gone

    def _advance(self, job: Job, limit: int, gone: list[FileRecord]) -> int:
        """Takes a job's last thing apart, or part of it; how many steps that were."""
        if not job.pending:
            self.jobs.pop()
            self.files -= job.files
            return 0
        thing = job.pending[-1]
        if thing.refs == 1 and isinstance(thing, Leaf) and thing.entries:
            return self._take_entries(job, thing, limit, gone)
        job.pending.pop()
        if thing.refs > 1:
            thing.refs -= 1
        elif isinstance(thing, Directory):
            self._counts.directories -= 1
            job.pending.append(thing.node)
        else:
            self._counts.nodes -= 1
            if isinstance(thing, Inner):
                job.pending.extend(thing.children)
        return 1

    def _take_entries(self, job: Job, leaf: Leaf, limit: int, gone: list[FileRecord]) -> int:
        """The last entries of a leaf. Directories among them are next."""
        entries, files = in_order(leaf), 0
        steps = min(limit, len(entries))
        for _ in range(steps):
            name, node = entries.popitem()
            self._counts.name_bytes -= name_bytes(name)
            if type(node) is File:
                files += 1
                node.refs -= 1
                if not node.refs:
                    gone.append(node.record)
            else:
                job.pending.append(node)
        job.files -= files
        self.files -= files
        return steps
