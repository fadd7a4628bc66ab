"""The namespace's state: a pure function of its log of commands.

`apply` is the only door for changes. It is deterministic: no clock, no randomness,
no I/O; time comes with the command and never goes back. Wall time is for people
(`mtime_ms`); whatever is waited for is noted in elapsed time. Two states that applied
the same commands are equal. Reads are plain methods and change nothing.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from diskless import paths
from diskless.config import format_bytes
from diskless.errors import (
    BadRequest,
    CapacityExceeded,
    DisklessError,
    StaleShards,
    UploadLost,
)
from diskless.model import AgentInfo, Extent, FileRecord, Place, Stripe, slot_name
from diskless.namespace import commands as c
from diskless.namespace import weights
from diskless.namespace.doomed import Doomed
from diskless.namespace.health import Health
from diskless.namespace.ledger import Ledger
from diskless.namespace.paged import Paged
from diskless.namespace.sessions import Mutation, Sessions, refused_before
from diskless.namespace.tree import Directory, File, Node, Tree, rename_bytes
from diskless.repair import condition


class PathStatus(Struct, frozen=True, array_like=True):
    """What a path is: `record` is None for a directory (inline bytes left out)."""

    path: str
    mtime_ms: int
    record: FileRecord | None


class Summary(Struct, frozen=True, array_like=True):
    files: int
    directories: int
    bytes: int


Offered = dict[str, Stripe | DisklessError]
"""The stripes of a command by id; an error says why one cannot be used."""

SESSION_SPARE = 8
"""Sessions may take the namespace this part of its limit beyond it: whoever wants to delete
something from a full one must be able to begin."""

DEMOTE_BYTES_MIN = 4 * 1024
"""Inline files larger than this are listed for demotion into stripes."""

BOOTS_PER_SLOT_MAX = 64
"""Lives of a slot that are remembered, so that a late repeat does not begin a new one."""


SWEEP_AT_ONCE = 1000
"""A recursive delete of more entries than this leaves them to later commands."""


class NamespaceState:
    def __init__(self, *, sweep_at_once: int = SWEEP_AT_ONCE) -> None:
        """All replicas must have the same `sweep_at_once`."""
        self.tree = Tree()
        self.doomed = Doomed()
        self.agents: dict[int, AgentInfo] = {}
        self.health = Health(self.agents)
        self.ledger = Ledger(self.health)
        self.sessions = Sessions()
        self.files: Paged[File] = Paged()  # what is doomed too
        self.clock_ms = 0
        self.elapsed_ms = 0
        self.lost_ms = 0  # by elapsed time, when a life was last seen that another has replaced
        self.bytes_inline = 0  # of what is doomed too
        self.bytes_max = 0  # by the leader's last word; 0: no limit is set yet
        self.extents = 0  # of all files
        self.demotable_ms: dict[int, int] = {}  # larger inline files, since when, oldest first
        self.roster_version = 0
        self._boots: dict[int, dict[str, int]] = {}  # slot -> boot -> incarnation
        self._last_file = 0
        self._sweep_at_once = sweep_at_once

    # -- commands ---------------------------------------------------------------

    def apply(self, command: c.Command, *, now_ms: int, elapsed_ms: int) -> tuple[c.Result, ...]:
        """Does one command; a commit has a result for each of its puts, others one."""
        if now_ms > self.clock_ms:
            self.clock_ms = now_ms
        if elapsed_ms > self.elapsed_ms:
            self.elapsed_ms = elapsed_ms
        results = self._apply(command)
        if self.health.stale:
            self.health.settle()
        return results

    def _apply(self, command: c.Command) -> tuple[c.Result, ...]:
        match command:
            case c.Commit():
                return self._commit(command)
            case c.Mkdirs() | c.Rename() | c.Delete():
                return (self._once(command, lambda: self._edit(command)),)
            case c.OpenSession():
                return (self._open_session(),)
            case c.Relocate():
                return (self._relocate(command),)
            case c.MoveShards(moves):
                moved = sum(self._move_shards(move) for move in moves)
                return (c.Done(moved, changed=moved > 0),)
            case c.Doubt(writers):
                self.ledger.doubt(writers, elapsed_ms=self.elapsed_ms)
            case c.Fence(slot, incarnation, below):
                self.ledger.fence(slot, incarnation, below)
            case c.Reap(stripes):
                self.ledger.reap(stripes)
            case c.Sweep(entries):
                self._sweep(entries)
            case c.AgentUp():
                return (self._agent_up(command),)
            case c.AgentDown(slot, incarnation):
                self._agent_down(slot, incarnation)
            case c.AgentSlow(slot, incarnation, slow):
                return (self._agent_slow(slot, incarnation, slow),)
            case c.Drain(slot, draining):
                return (self._drain(slot, draining),)
            case c.Limit(bytes_max):
                changed, self.bytes_max = bytes_max != self.bytes_max, bytes_max
                return (c.Done(changed=changed),)
        return (c.Done(),)

    def _once(self, command: Mutation, run: Callable[[], c.Result]) -> c.Result:
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
        try:
            result = run()
        except DisklessError as error:
            result = c.Refused.of(error)
            if error.retryable or isinstance(error, UploadLost):
                return result
        self.sessions.record(command.session, command.sequence, result)
        return result

    def _open_session(self) -> c.Result:
        spare = self.bytes_max // SESSION_SPARE
        if self._lacks_room(weights.SESSION_BYTES - spare):
            return c.Refused.of(
                CapacityExceeded(
                    f"{len(self.sessions)} clients have sessions and the namespace "
                    f"{self._fullness()}: delete files, or start the cluster with more --memory"
                )
            )
        return c.Done(self.sessions.open(elapsed_ms=self.elapsed_ms))

    # -- memory -----------------------------------------------------------------

    @property
    def bytes_used(self) -> int:
        """How much memory the namespace takes."""
        return weights.total(self)

    def _lacks_room(self, growth: int) -> bool:
        return 0 < self.bytes_max < weights.total(self) + growth

    def _check_room(self, growth: int, path: str) -> None:
        """Raises CapacityExceeded. Only for what clients add: deletes, repair and all that
        keeps the cluster whole are never refused for lack of room."""
        if self._lacks_room(growth):
            raise CapacityExceeded(
                f"{path}: the namespace {self._fullness()}: delete files, "
                "or start the cluster with more --memory"
            )

    def _fullness(self) -> str:
        return (
            f"takes {format_bytes(self.bytes_used)} of the {format_bytes(self.bytes_max)} that "
            "agents have room for"
        )

    def _commit(self, command: c.Commit) -> tuple[c.Result, ...]:
        offered = self._examine(command.stripes)

        def run(put: c.Put) -> c.Result:
            return self._once(put, lambda: self._put(put, offered))

        return tuple(run(put) for put in command.puts)

    def _examine(self, stripes: Iterable[Stripe]) -> Offered:
        """Which stripes of a command may be used, and why not the others.

        They enter the ledger only with a file that uses them: whoever offered one in
        vain may offer it again, so it must not be freed in between.
        """
        offered: Offered = {}
        for stripe in stripes:
            known = self.ledger.entries.get(stripe.id)
            stripe = known.stripe if known is not None else stripe
            try:
                _check_shape(stripe)
                self.ledger.check_new(stripe)
                self._check_places(stripe)
            except (BadRequest, StaleShards, UploadLost) as error:
                offered[stripe.id] = error
            else:
                offered[stripe.id] = stripe
        return offered

    def _check_places(self, stripe: Stripe) -> None:
        for index, place in enumerate(stripe.places):
            if not self._is_up(place):
                # A shard of an agent that is down may come back; to acknowledge it now
                # would promise one loss more than the stripe survives.
                raise StaleShards(
                    f"stripe {stripe.id}: {slot_name(place.slot)}, which has shard {index}, "
                    "is down or has restarted: write it again"
                )

    def _is_up(self, place: Place) -> bool:
        return condition(place, self.agents).readable

    def _put(self, put: c.Put, offered: Offered) -> c.Result:
        self._check_put(put, offered)
        first = self._last_file + 1
        for file in put.files:
            self._last_file += 1
            record = FileRecord(
                self._last_file, file.size, self.clock_ms, file.checksum, file.inline, file.extents
            )
            node, replaced = self.tree.put(file.path, record, now_ms=self.clock_ms)
            self._hold(node, offered)
            if replaced is not None:
                self._let_go([replaced])
        return c.Done(first, self.clock_ms)

    def _check_put(self, put: c.Put, offered: Offered) -> None:
        names = {file.path for file in put.files}
        if len(names) < len(put.files):
            raise BadRequest("a path occurs twice in one request")
        clash = names & paths.above(names)
        for file in put.files:
            self.tree.check_put(file.path, overwrite=put.overwrite)
            if clash and clash & paths.above([file.path]):
                raise BadRequest(f"{file.path} lies below another file of the request")
            self._check_content(file, offered)
        if self.bytes_max:
            used = {extent.stripe for file in put.files for extent in file.extents}
            stripes = [s for id_ in used if isinstance(s := offered[id_], Stripe)] if used else ()
            self._check_room(weights.put_bytes(put.files, stripes), put.files[0].path)

    def _check_content(self, file: c.NewFile, offered: Offered) -> None:
        if (file.inline is None) != bool(file.extents):
            raise BadRequest(f"{file.path}: its bytes are neither all inline nor all in extents")
        for extent in file.extents:
            stripe = offered.get(extent.stripe)
            if isinstance(stripe, DisklessError):
                raise stripe
            if stripe is None or not _lies_in(extent, stripe):
                raise BadRequest(f"{file.path}: no such bytes in this commit: {extent}")
        held = len(file.inline) if file.inline is not None else 0
        if held + sum(extent.length for extent in file.extents) != file.size:
            raise BadRequest(f"{file.path}: its parts do not add up to {file.size} bytes")

    def _edit(self, command: c.Mkdirs | c.Rename | c.Delete) -> c.Result:
        now_ms = self.clock_ms
        match command:
            case c.Mkdirs(path=path):
                if self.tree.find(path) is None:
                    self._check_room(weights.path_bytes(path), path)
                return c.Done(changed=self.tree.mkdirs(path, now_ms=now_ms))
            case c.Rename(source=source, target=target, overwrite=overwrite):
                self._check_rename(source, target)
                replaced = self.tree.rename(source, target, overwrite=overwrite, now_ms=now_ms)
                self._let_go([replaced] if replaced else [])
                return c.Done()
            case c.Delete(path=path, recursive=recursive):
                gone = self.tree.delete(path, recursive=recursive, now_ms=now_ms)
                self._give_up(gone)
                return c.Done(changed=gone is not None)

    def _check_rename(self, source: str, target: str) -> None:
        """A longer name takes room, unless what it replaces frees some."""
        node, old = self.tree.find(source), self.tree.find(target)
        if node is not None and old is None:
            growth = rename_bytes(node, target.rpartition("/")[2])
            if growth > 0:
                self._check_room(growth, target)

    def _give_up(self, node: Node | None) -> None:
        """Lets go of what was detached: at once if it is little, else by and by."""
        if isinstance(node, File):
            self._let_go([node.record])
        elif node is not None:
            entries = node.files + node.directories
            self.doomed.add(node)
            if entries <= self._sweep_at_once:
                self._sweep(2 * entries)  # a directory is an entry, and is left once

    def _sweep(self, entries: int) -> None:
        self._let_go(self.doomed.sweep(entries))

    def _hold(self, file: File, offered: Offered) -> None:
        record = file.record
        for extent in record.extents:
            stripe = offered.get(extent.stripe)
            if isinstance(stripe, Stripe):
                self.ledger.define(stripe)
        self.files[record.id] = file
        self.bytes_inline += len(record.inline or b"")
        self.extents += len(record.extents)
        if record.inline is not None and record.size > DEMOTE_BYTES_MIN:
            self.demotable_ms[record.id] = self.elapsed_ms
        self.ledger.add(record.id, record.extents)

    def _let_go(self, records: Iterable[FileRecord], *, moved: bool = False) -> None:
        for record in records:
            if not moved:
                del self.files[record.id]
            self.demotable_ms.pop(record.id, None)
            self.bytes_inline -= len(record.inline or b"")
            self.extents -= len(record.extents)
            self.ledger.release(record.id, record.extents, elapsed_ms=self.elapsed_ms)

    def _relocate(self, command: c.Relocate) -> c.Result:
        """Counts in `number` the files that moved; the others had changed meanwhile."""
        offered = self._examine(command.stripes)
        moved = 0
        for move in command.moves:
            file = self.files.get(move.id)
            if file is None or file.record.layout != move.layout:
                continue
            old = file.record
            if not self._holds_all(old, move.extents, offered):
                continue
            file.record = replace(old, inline=None, extents=move.extents, layout=old.layout + 1)
            # In this order, so that a stripe that keeps some of the bytes stays alive.
            self._hold(file, offered)
            self._let_go([old], moved=True)
            moved += 1
        return c.Done(moved, changed=moved > 0)

    def _holds_all(self, record: FileRecord, extents: tuple[Extent, ...], offered: Offered) -> bool:
        """Whether all of a file's bytes can be there: in its own stripes, or in offered ones."""
        kept = {extent.stripe for extent in record.extents}
        for extent in extents:
            known = extent.stripe in kept
            stripe = self.ledger.get(extent.stripe) if known else offered.get(extent.stripe)
            if not isinstance(stripe, Stripe) or not _lies_in(extent, stripe):
                return False
        return bool(extents) and sum(extent.length for extent in extents) == record.size

    def _move_shards(self, move: c.ShardMove) -> bool:
        """Whether the stripe is still as the mover knew it, and is moved."""
        entry = self.ledger.entries.get(move.stripe)
        if entry is None or entry.stripe.version != move.version:
            return False
        slots = [place.slot for place in entry.stripe.places]
        for index, place in move.places:
            if not (0 <= index < len(slots) and self._is_up(place)):
                return False
            slots[index] = place.slot
        if len(set(slots)) < len(slots):
            return False  # one agent's death would cost two shards
        self.ledger.move(move.stripe, move.places)
        return True

    def _agent_up(self, command: c.AgentUp) -> c.Result:
        old = self.agents.get(command.slot)
        boots = self._boots.setdefault(command.slot, {})
        incarnation = boots.get(command.boot)
        if incarnation is None:
            incarnation = boots[command.boot] = old.incarnation + 1 if old is not None else 1
            if len(boots) > BOOTS_PER_SLOT_MAX:
                del boots[next(iter(boots))]
        elif old is not None and incarnation < old.incarnation:
            return c.Done(incarnation, changed=False)  # a late repeat: that life is over
        info = AgentInfo(
            slot=command.slot,
            incarnation=incarnation,
            boot=command.boot,
            address=command.address,
            gateway=command.gateway,
            socket=command.socket,
            host=command.host,
            node=command.node,
            pid=command.pid,
            draining=old is not None and old.draining,
            slow=old is not None and old.slow and old.incarnation == incarnation,
        )
        if info != old:
            is_loss = old is not None and old.incarnation != incarnation
            if old is not None and is_loss:
                seen_ms = self.elapsed_ms if old.up else old.down_ms
                self.lost_ms = max(self.lost_ms, seen_ms)
            self._note_agent(info, is_loss=is_loss)
        return c.Done(incarnation, changed=info != old)

    def _agent_down(self, slot: int, incarnation: int) -> None:
        agent = self.agents.get(slot)
        if agent is not None and agent.incarnation == incarnation and agent.up:
            down = replace(agent, up=False, down_ms=max(self.elapsed_ms, 1))
            self._note_agent(down, is_loss=True)

    def _agent_slow(self, slot: int, incarnation: int, slow: bool) -> c.Result:
        agent = self.agents.get(slot)
        changed = agent is not None and agent.incarnation == incarnation and agent.slow != slow
        if changed:
            assert agent is not None
            self._note_agent(replace(agent, slow=slow), is_loss=False)
        return c.Done(changed=changed)

    def _drain(self, slot: int, draining: bool) -> c.Result:
        agent = self.agents.get(slot)
        if agent is None:
            return c.Refused.of(BadRequest(f"{slot_name(slot)} has never joined the cluster"))
        changed = agent.draining != draining
        if changed:
            self._note_agent(replace(agent, draining=draining), is_loss=False)
        return c.Done(changed=changed)

    def _note_agent(self, agent: AgentInfo, *, is_loss: bool) -> None:
        self.agents[agent.slot] = agent
        self.roster_version += 1
        self.health.touch(agent.slot, is_loss=is_loss)

    @property
    def left_ms(self) -> int:
        """By elapsed time, since when all agents that are missing have been away: one that is
        back in the same life was not lost, however often it goes."""
        away = [agent.down_ms for agent in self.agents.values() if not agent.up]
        return max([self.lost_ms, *away])

    @property
    def bytes_logical(self) -> int:
        """Of all files that a path leads to."""
        return self.tree.root.bytes

    # -- reads ------------------------------------------------------------------

    def stat(self, path: str) -> PathStatus:
        return _status(self.tree.get(path), path)

    def page(self, path: str, *, after: str, limit: int) -> tuple[list[PathStatus], bool]:
        nodes, more = self.tree.page(path, after=after, limit=limit)
        if isinstance(self.tree.get(path), File):
            return [_status(nodes[0], path)], more
        above = path.rstrip("/")
        return [_status(node, f"{above}/{node.name}") for node in nodes], more

    def open(self, path: str) -> tuple[FileRecord, list[Stripe]]:
        """A file's record and the stripes that it lies in."""
        record = self.tree.get_file(path).record
        return record, self.locate({extent.stripe for extent in record.extents})

    def locate(self, stripes: Iterable[str]) -> list[Stripe]:
        """Raises NotFound for a stripe that is gone."""
        return [self.ledger.get(id_) for id_ in stripes]

    def summary(self, path: str) -> Summary:
        node = self.tree.get(path)
        if isinstance(node, File):
            return Summary(1, 0, node.record.size)
        return Summary(node.files, node.directories, node.bytes)


def _check_shape(stripe: Stripe) -> None:
    """Raises BadRequest for a stripe that no writer makes."""
    slots = {place.slot for place in stripe.places}
    total = stripe.data_shards + stripe.parity_shards
    least = min(stripe.data_shards, stripe.parity_shards, stripe.payload_bytes)
    if least < 1 or not len(slots) == len(stripe.places) == total:
        raise BadRequest(f"stripe {stripe.id}: {total} shards must be on as many agents")


def _lies_in(extent: Extent, stripe: Stripe) -> bool:
    end = extent.offset + extent.length
    return extent.offset >= 0 and extent.length >= 1 and end <= stripe.payload_bytes


def _status(node: Node, path: str) -> PathStatus:
    if isinstance(node, Directory):
        return PathStatus(path, node.mtime_ms, None)
    record = node.record
    bare = replace(record, inline=None, extents=()) if record.inline or record.extents else record
    return PathStatus(path, record.mtime_ms, bare)
