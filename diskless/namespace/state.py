"""The namespace's state: a pure function of its log of commands.

`apply` is the only way to change it. It is deterministic: no clock, no randomness,
no I/O; time comes with the command and never goes back. Wall time is for people
(`mtime_ms`); whatever is waited for is noted in elapsed time. Two states that applied
the same commands are equal. Reads are plain methods and change nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec

from diskless import paths, policy
from diskless.config import format_bytes
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    DisklessError,
    NotFound,
    PathIsDirectory,
    PathIsFile,
    StaleShards,
    UploadLost,
)
from diskless.model import FileRecord, Place, Stripe, slot_name
from diskless.namespace import btree, edits, marked, moves, past, quotas, registry, tier, weights
from diskless.namespace import commands as c
from diskless.namespace.content import Offered, check_content, check_shape
from diskless.namespace.doomed import Doomed
from diskless.namespace.history import History, Snapshot
from diskless.namespace.journal import Change, Journal
from diskless.namespace.leases import APPLICATION_CHARS_MAX, Leases
from diskless.namespace.ledger import Ledger
from diskless.namespace.marked import Marked
from diskless.namespace.paged import Paged
from diskless.namespace.policies import Policies
from diskless.namespace.roster import Roster
from diskless.namespace.sessions import Mutation, Sessions, refused_before
from diskless.namespace.temporaries import Temporaries
from diskless.namespace.tier import Tier, is_cold
from diskless.namespace.tokens import Tokens
from diskless.namespace.tree import Directory, File, Node, Spot, Tree, descend
from diskless.namespace.views import PathStatus, Summary, status_of
from diskless.policy import parity_of, priority_of
from diskless.repair import condition

P = ParamSpec("P")

SESSION_SPARE = 8
"""Sessions may take the namespace this part of its limit beyond it: a client that wants to delete
something from a full one must be able to begin."""

DEMOTE_BYTES_MIN = 4 * 1024
"""Inline files larger than this are listed for demotion into stripes."""

DIGITS_MAX = 18
"""Of a name that counts as a number: it fits in 64 bits."""

SWEEP_AT_ONCE = 800
"""A recursive delete of more entries than this leaves them to later commands."""

SURE_INLINE_BYTES = 32 * 1024
SURE_PATH_CHARS = 200
SURE_PUT_BYTES = 128 * 1024
"""More than the namespace can grow by a put of one inline file of such a size and path, which
copies nothing that is shared: two thirds of it at the very most, with a hundred directories."""
SURE_PUTS_MAX = 256


class NamespaceState:
    def __init__(self, *, sweep_at_once: int = SWEEP_AT_ONCE, parity_shards: int = 0) -> None:
        """All replicas must have the same of both. `parity_shards` is the cluster's k; where it
        is not known, 0, nothing is refused for having fewer."""
        self.parity_shards = parity_shards
        self.trusts = False
        """Whether it is made again what was allowed before: no quota and no k refuses it."""
        self.tree = Tree()
        self.doomed = Doomed(self.tree.counts)
        self.history = History()
        self.roster = Roster()
        self.agents = self.roster.agents
        self.health = self.roster.health
        self.ledger = Ledger(self.health)
        self.sessions = Sessions()
        self.leases = Leases()
        self.tokens = Tokens()
        self.policies = Policies()
        self.tier = Tier()
        self.marked: Marked | None = None
        self.journal: Journal | None = None  # this replica's own, and not part of the state
        self.temporaries = Temporaries()  # as well
        self.files: Paged[File] = Paged()  # what is doomed too
        self.op = 0  # the place in the log of the last command
        self.clock_ms = 0
        self.elapsed_ms = 0
        self.bytes_inline = 0  # of what is doomed too
        self.bytes_max = 0  # by the leader's last word; 0: no limit is set yet
        self.extents = 0  # of all files
        self.demotable_ms: dict[int, int] = {}  # larger inline files, since when, oldest first
        self.thin: dict[int, None] = {}  # files in stripes of less parity than they ask for
        self._last_file = 0
        self._sure_puts = 0  # small ones that there certainly is room for
        self._sweep_at_once = sweep_at_once

    # -- commands ---------------------------------------------------------------

    def apply(
        self, command: c.Command, *, now_ms: int, elapsed_ms: int, op: int = 0
    ) -> tuple[c.Result, ...]:
        """Does one command; a commit has a result for each of its puts, others one."""
        self.op = op
        if now_ms > self.clock_ms:
            self.clock_ms = now_ms
        if elapsed_ms > self.elapsed_ms:
            self.elapsed_ms = elapsed_ms
        if type(command) is c.Commit:
            results = self._commit(command)
        else:
            results = self._apply(command)
            self._sure_puts = 0
        if self.ledger.uneven:
            self.ledger.settle()
        if self.health.stale:
            self.health.settle()
        return results

    def _apply(self, command: c.Command) -> tuple[c.Result, ...]:
        match command:
            case c.Mkdirs() | c.Rename() | c.Delete():
                return (self._once(command, edits.run, self, command),)
            case (
                c.CreateSnapshot()
                | c.RenameSnapshot()
                | c.DeleteSnapshots()
                | c.Clone()
                | c.Rollback()
                | c.Prune()
                | c.Replace()
            ):
                return (self._once(command, past.run, self, command),)
            case c.KeepLeases():
                return (self._once(command, self.leases.keep, self, command),)
            case c.OpenSession(who, application):
                return (self._open_session(who, application),)
            case c.Relocate():
                return (moves.relocate(self, command),)
            case c.MoveShards():
                return (moves.move_shards(self, command),)
            case c.Doubt(writers):
                self.ledger.doubt(writers, elapsed_ms=self.elapsed_ms)
            case c.Fence(slot, incarnation, below):
                self.ledger.fence(slot, incarnation, below)
            case c.Reap(stripes):
                self.ledger.reap(stripes)
            case c.Sweep(entries):
                self.sweep(entries)
            case c.AgentUp():
                return (self.roster.up(command, elapsed_ms=self.elapsed_ms),)
            case c.AgentDown(slot, incarnation):
                self.roster.down(slot, incarnation, elapsed_ms=self.elapsed_ms)
            case c.AgentSlow(slot, incarnation, slow):
                return (self.roster.slow(slot, incarnation, slow, elapsed_ms=self.elapsed_ms),)
            case c.AgentEnds():
                return (self.roster.ends(command, elapsed_ms=self.elapsed_ms),)
            case c.Drain(slot, draining):
                return (self.roster.drain(slot, draining),)
            case c.Limit(bytes_max):
                changed, self.bytes_max = bytes_max != self.bytes_max, bytes_max
                return (c.Done(changed=changed),)
            case c.IssueToken() | c.RevokeToken() | c.SetPolicy() | c.RemovePolicy():
                return (_tried(registry.run, self, command),)
            case (
                c.AttachTier()
                | c.DetachTier()
                | c.Close()
                | c.Drilled()
                | c.Keep()
                | c.Horizon()
                | c.Evict()
            ):
                return (_tried(tier.run, self, command),)
            case c.Mark() | c.Unmark():
                return (marked.run(self, command),)
        return (c.Done(),)

    def _once(
        self, command: Mutation, run: Callable[P, c.Done], *args: P.args, **kwargs: P.kwargs
    ) -> c.Result:
        """Runs a client's mutation unless it has been answered before.

        Refusals that a repeat may overcome, by new shards, are not recorded.
        """
        try:
            known = self.sessions.answer(
                command.session, command.sequence, elapsed_ms=self.elapsed_ms
            )
        except DisklessError as error:
            return c.Refused.of(error)
        if known is not None:
            return known if isinstance(known, c.Done) else refused_before(known.reason, command)
        result: c.Result
        try:
            self.tier.check_open()
            result = done = run(*args, **kwargs)
        except DisklessError as error:
            self._sure_puts = 0  # its answer takes room too
            result = c.Refused.of(error)
            if error.retryable or isinstance(error, UploadLost):
                return result
        else:
            if self.tier.attached and done.changed and not isinstance(command, c.KeepLeases):
                self.note(command, done)
        self.sessions.record(command.session, command.sequence, result)
        return result

    def note(self, change: Change, done: c.Done) -> None:
        """Counts a change of what an attached tier keeps, and writes it down."""
        self.tier.change += 1
        if self.has_barriers:
            self.tier.plans.note(self, change)
        if self.journal is not None:
            self.journal.note(self, change, done)

    @property
    def has_barriers(self) -> bool:
        """Whether some path asks for `durability=barrier`, or all do."""
        return self.policies.barriers or self.tier.options.durability == policy.BARRIER

    def _open_session(self, who: str, application: str) -> c.Result:
        application = application[:APPLICATION_CHARS_MAX]
        spare = self.bytes_max // SESSION_SPARE
        if self._lacks_room(weights.SESSION_BYTES + len(who) + len(application) - spare):
            return c.Refused.of(
                CapacityExceeded(
                    f"{len(self.sessions)} clients have sessions and the namespace "
                    f"{self._fullness()}: delete files, or start the cluster with more --memory"
                )
            )
        return c.Done(self.sessions.open(who, application, elapsed_ms=self.elapsed_ms))

    # -- memory -----------------------------------------------------------------

    @property
    def bytes_used(self) -> int:
        """How much memory the namespace takes."""
        return weights.total(self)

    def _lacks_room(self, growth: int) -> bool:
        return 0 < self.bytes_max < weights.total(self) + growth

    def check_room(self, growth: int, path: str) -> None:
        """Raises CapacityExceeded. Only for what clients add: deletes, repair and all that
        keeps the cluster whole are never refused for lack of room."""
        if not self.bytes_max:
            return
        left = self.bytes_max - weights.total(self) - growth
        if left < 0:
            raise CapacityExceeded(
                f"{path}: the namespace {self._fullness()}: delete files, "
                "or start the cluster with more --memory"
            )
        # So that the sum is not asked for with each of many small puts.
        self._sure_puts = min(left // SURE_PUT_BYTES, SURE_PUTS_MAX)

    def _fullness(self) -> str:
        return (
            f"takes {format_bytes(self.bytes_used)} of the {format_bytes(self.bytes_max)} that "
            "agents have room for"
        )

    def _commit(self, command: c.Commit) -> tuple[c.Result, ...]:
        offered = self.examine(command.stripes) if command.stripes else {}
        return tuple([self._once(put, self._put, put, offered) for put in command.puts])

    def examine(self, stripes: Iterable[Stripe]) -> Offered:
        """Which stripes of a command may be used, and why not the others.

        They enter the ledger only with a file that uses them: whoever offered one in
        vain may offer it again, so it must not be freed in between.
        """
        offered: Offered = {}
        for stripe in stripes:
            known = self.ledger.entries.get(stripe.id)
            stripe = known.stripe if known is not None else stripe
            try:
                check_shape(stripe)
                self.ledger.check_new(stripe)
                self._check_places(stripe)
            except (BadRequest, StaleShards, UploadLost) as error:
                offered[stripe.id] = error
            else:
                offered[stripe.id] = stripe
        return offered

    def _check_places(self, stripe: Stripe) -> None:
        for index, place in enumerate(stripe.places):
            if not self.is_up(place):
                # A shard of an agent that is down may come back; to acknowledge it now
                # would promise one loss more than the stripe survives.
                raise StaleShards(
                    f"stripe {stripe.id}: {slot_name(place.slot)}, which has shard {index}, "
                    "is down or has restarted: write it again"
                )

    def is_up(self, place: Place) -> bool:
        return condition(place, self.agents).readable

    def _put(self, put: c.Put, offered: Offered) -> c.Done:
        spots = self._check_put(put, offered)
        self.leases.take(self, put.session, spots)
        first = self._last_file + 1
        tree, shape, grades = self.tree, self.tree.shape, self.policies.grades
        gone: list[FileRecord] = []
        for file, spot in zip(put.files, spots, strict=True):
            if tree.shape != shape:  # Those before it have changed more than their own entries.
                spot = tree.spot(file.path, overwrite=put.overwrite)
            self._last_file += 1
            record = FileRecord(
                self._last_file, file.size, self.clock_ms, file.checksum, file.inline, file.extents,
                grade=grades.at(file.path) if grades else 0,
            )  # fmt: skip
            node, replaced = tree.put(spot, record, now_ms=self.clock_ms)
            self.hold(node, offered)
            self.temporaries.put(file.path, put.session, self._last_file)
            if replaced is not None and not replaced.refs:
                gone.append(replaced.record)
        if gone:
            self.let_go(gone)
        return c.Done(first, self.clock_ms)

    def _check_put(self, put: c.Put, offered: Offered) -> list[Spot]:
        """Where each of the files goes. Raises what keeps any of them from being put."""
        above = _check_apart([file.path for file in put.files]) if len(put.files) > 1 else None
        spots, copied = [], 0
        seen: set[int] | None = None
        tree, full = self.tree, self.parity_shards
        # No path asks for more than k, and nearly all stripes have that.
        some_lack_parity = bool(offered) and any(
            isinstance(stripe, Stripe) and stripe.parity_shards < full
            for stripe in offered.values()
        )
        spot: Spot | None = None
        for file in put.files:
            spot = tree.spot(file.path, overwrite=put.overwrite, beside=spot)
            spots.append(spot)
            if not put.parents:
                spot.require_parent()
            check_content(file, offered)
            if some_lack_parity and file.extents:
                self._check_parity(file, offered)
            if spot.shared:
                seen = set() if seen is None else seen
                copied += tree.copy_bytes(spot.parts, seen)
        if self.policies.quotas:
            quotas.check(self, _growths(put.files, spots))
        if self._sure_puts and not copied and _is_small(put.files):
            self._sure_puts -= 1
        elif not put.files:
            self._sure_puts = 0  # Nothing was asked for, and its answer takes room.
        elif self.bytes_max:
            used = {extent.stripe for file in put.files for extent in file.extents}
            stripes = [s for id_ in used if isinstance(s := offered[id_], Stripe)] if used else ()
            self._sure_puts = 0
            if above is None or self._lacks_room(
                copied + weights.put_bytes_bound(put.files, stripes, above)
            ):
                self.check_room(copied + weights.put_bytes(put.files, stripes), put.files[0].path)
        return spots

    def _check_parity(self, file: c.NewFile, offered: Offered) -> None:
        """Raises StaleShards if a stripe has less parity than the path asks for: its writer has
        not heard of a policy yet."""
        asked = parity_of(self.policies.grades.at(file.path), self.parity_shards)
        for extent in file.extents:
            stripe = offered[extent.stripe]
            if isinstance(stripe, Stripe) and stripe.parity_shards < asked:
                raise StaleShards(
                    f"stripe {stripe.id} has {stripe.parity_shards} parity shards, and {file.path} "
                    f"asks for {asked}: write it again"
                )

    def give_up(self, node: Node | None) -> None:
        """Lets go of what was detached: at once if it is little, else by and by."""
        if isinstance(node, File):
            node.refs -= 1
            if not node.refs:
                self.let_go([node.record])
        elif node is not None:
            entries = node.files + node.directories
            if self.doomed.add(node) and entries <= self._sweep_at_once:
                self.let_go(self.doomed.finish())

    def forget(self, snapshots: Iterable[Snapshot]) -> None:
        """Takes snapshots off the table; what only they held is swept, most of it by and by."""
        held = self.marked
        roots: list[Directory] = []
        for snapshot in snapshots:
            root = self.history.remove(snapshot)
            if held is None or not held.note_forgotten(snapshot):
                roots.append(root)
        self.leave(roots)

    def leave(self, roots: Iterable[Directory]) -> None:
        """Gives references to directories back; what nothing else holds is swept."""
        for root in roots:
            self.doomed.add(root)
        self.sweep(self._sweep_at_once)

    def sweep(self, steps: int) -> None:
        self.let_go(self.doomed.sweep(steps))

    def hold(self, file: File, offered: Offered) -> None:
        record = file.record
        self.files[record.id] = file
        if record.inline is not None:
            self.bytes_inline += len(record.inline)
            if record.size > DEMOTE_BYTES_MIN:
                self.demotable_ms[record.id] = self.elapsed_ms
        if record.extents:
            known, priority = self.ledger.entries, priority_of(record.grade)
            for extent in record.extents:
                entry = known.get(extent.stripe)
                if entry is None or entry.priority < priority:
                    stripe = offered.get(extent.stripe)
                    if isinstance(stripe, Stripe):
                        self.ledger.define(stripe, priority)
            self.extents += len(record.extents)
            self.ledger.add(record.id, record.extents)

    def take(self, file: File) -> None:
        """A file that comes without its bytes, from the tier."""
        record = file.record
        self.files[record.id] = file
        if is_cold(record):
            self.tier.chill(record)

    def let_go(self, records: Iterable[FileRecord], *, moved: bool = False) -> None:
        tiered = self.tier if self.tier.attached or self.tier.places else None
        for record in records:
            if not moved:
                del self.files[record.id]
            if tiered is not None:
                if tiered.cold or tiered.evicted:
                    tiered.warm(record.id)
                if not moved:
                    tiered.forget(record.id)
            if self.thin:
                self.thin.pop(record.id, None)
            if record.inline is not None:
                self.demotable_ms.pop(record.id, None)
                self.bytes_inline -= len(record.inline)
            if record.extents:
                self.extents -= len(record.extents)
                self.ledger.release(record.id, record.extents, elapsed_ms=self.elapsed_ms)

    @property
    def last_file(self) -> int:
        """The id of the newest file that there ever was."""
        return self._last_file

    def next_file(self) -> int:
        self._last_file += 1
        return self._last_file

    def begin_epoch(self, *, files: int, sessions: int) -> None:
        """Ids of files and numbers of sessions continue from there, at least."""
        self._last_file = max(self._last_file, files)
        self.sessions.begin(sessions)

    @property
    def roster_version(self) -> int:
        return self.roster.version

    @property
    def left_ms(self) -> int:
        return self.roster.left_ms

    @property
    def bytes_logical(self) -> int:
        """Of all files that a path leads to."""
        return self.tree.root.bytes

    # -- reads ------------------------------------------------------------------

    def get(self, path: str) -> Node:
        """What is at a path, which may lead below `.snapshot`. Raises NotFound."""
        if paths.BELOW in path and paths.SNAPSHOTS in paths.split(path):
            node = self.history.find(self.tree, path)
        else:
            node = descend(self.tree.root, paths.split(path))
        if node is None:
            raise NotFound(f"{path}: no such file or directory")
        return node

    def stat(self, path: str) -> PathStatus:
        return status_of(self.get(path), path)

    def page(self, path: str, *, after: str, limit: int) -> tuple[list[PathStatus], bool]:
        """Up to `limit` entries named beyond `after`, in order, and whether more follow.

        A file is its own only entry.
        """
        node = self.get(path)
        if isinstance(node, File):
            return [status_of(node, path)], False
        found, more = btree.page(node.node, after=after, limit=limit)
        above = path.rstrip("/") + "/"
        return [status_of(node, above + name) for name, node in found], more

    def newest(
        self, path: str, *, after: str, limit: int, names_max: int
    ) -> tuple[list[PathStatus], str]:
        """Of the files named beyond `after`, those with the `limit` greatest numbers for names, the
        greatest first; and up to which name it has looked, empty if to the end. It looks at
        about `names_max` names."""
        node = self.get(path)
        if isinstance(node, File):
            raise PathIsFile(f"{path} is a file")
        names, upto = btree.numbers(node.node, after=after, names_max=names_max)
        names.sort()
        names.sort(key=len)  # the order of numbers that do not begin with a zero
        above = path.rstrip("/") + "/"
        found: list[PathStatus] = []
        for name in reversed(names):
            if len(name) > DIGITS_MAX or (name[0] == "0" and name != "0"):
                continue
            if type(file := btree.find(node.node, name)) is File:
                found.append(status_of(file, above + name))
            if len(found) == limit:
                break
        return found, upto

    def open(self, path: str) -> tuple[FileRecord, list[Stripe]]:
        """A file's record and the stripes that it lies in."""
        node = self.get(path)
        if type(node) is not File:
            raise PathIsDirectory(f"{path} is a directory")
        record = node.record
        return record, self.locate({extent.stripe for extent in record.extents})

    def locate(self, stripes: Iterable[str]) -> list[Stripe]:
        """Raises NotFound for a stripe that is gone."""
        return [self.ledger.get(id_) for id_ in stripes]

    def summary(self, path: str) -> Summary:
        node = self.get(path)
        if isinstance(node, File):
            return Summary(1, 0, node.record.size)
        return Summary(node.files, node.directories, node.bytes)


def _tried(run: Callable[P, c.Result], *args: P.args, **kwargs: P.kwargs) -> c.Result:
    try:
        return run(*args, **kwargs)
    except DisklessError as error:
        return c.Refused.of(error)


def _growths(files: tuple[c.NewFile, ...], spots: list[Spot]) -> Iterator[quotas.Growth]:
    for file, spot in zip(files, spots, strict=True):
        yield file.path, file.size - (spot.old.record.size if spot.old is not None else 0)


def _is_small(files: tuple[c.NewFile, ...]) -> bool:
    """Whether a put is one that `SURE_PUT_BYTES` speaks of."""
    return (
        len(files) == 1
        and files[0].inline is not None
        and files[0].size <= SURE_INLINE_BYTES
        and len(files[0].path) <= SURE_PATH_CHARS
    )


def _check_apart(names: list[str]) -> set[str]:
    """The directories above the paths of a put. Raises BadRequest if these are in each other's
    way."""
    known = set(names)
    if len(known) < len(names):
        raise BadRequest("a path occurs twice in one request")
    above = paths.above(names)
    clash = known & above
    for name in names if clash else ():
        if clash & paths.above([name]):
            raise BadRequest(f"{name} lies below another file of the request")
    return above
