"""An agent's part in keeping Spark's notes about batches: it receives them, passes them on, and
catches up.

The agent that a listener talks to sends the notes to all voters, once, in the background: to the
leader at once, to the others what arrives in half a second together. What does not arrive is not
sent again. A voter asks the others for missing notes when it starts and when it becomes leader, so
the leader, which answers queries, has what any voter had. Nothing here is replicated or waited for,
and a full outbox drops new notes: they are only for display.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from diskless import paths
from diskless.agent.memory import Memory
from diskless.agent.noted import IndexEntry, NoteTable, Row
from diskless.agent.ports import NotePeers
from diskless.agent.roster import Roster
from diskless.agent.router import Router
from diskless.errors import BadRequest, DisklessError, NotFound
from diskless.model import slot_name
from diskless.namespace import queries as q
from diskless.notes import BatchNote, Noted, pack

log = logging.getLogger(__name__)

TABLE_SHARE = 1 / 64
TABLE_BYTES_MAX = 16 << 20
"""Bytes of a voter's table: 80,000 notes or more."""
OUTBOX_BYTES_MAX = 64 * 1024
"""Bytes of unsent notes for one voter, and so of one message, which takes its receiver some
milliseconds."""
PASS_ON_S = 0.5
"""Notes that arrive in this time go to a voter together: a message costs both ends more than what
is in it. The leader, which answers queries, gets them at once."""
OUTBOX_BYTES_SOON = OUTBOX_BYTES_MAX // 2
"""An outbox with this many bytes does not wait."""
ROW_BYTES = 300
NOTE_BYTES = 50
"""Bytes around the path and around each unsent note."""
OFFSETS = "offsets"


class Tell(Struct, frozen=True, tag=True, array_like=True):
    """Notes that another agent received."""

    rows: list[Row]


class Index(Struct, frozen=True, tag=True, array_like=True):
    """What is there, by path, beyond `after`."""

    after: str = ""


class Fetch(Struct, frozen=True, tag=True, array_like=True):
    path: str


NotesCall = Tell | Index | Fetch
"""From agent to voter. Answered with nothing, a list of IndexEntry, and a Row or nothing."""


class _Outbox:
    """What one voter has not been sent yet."""

    __slots__ = ("bytes", "fills", "rows", "sending")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.bytes = 0
        self.fills = asyncio.Event()
        self.sending: asyncio.Task[None] | None = None


class Notebook:
    def __init__(
        self,
        *,
        slot: int,
        voters: int,
        roster: Roster,
        namespace: Router,
        peers: NotePeers,
        memory: Memory,
        timeout_s: float,
    ) -> None:
        self._slot = slot
        self._voters = voters
        self._roster = roster
        self._namespace = namespace
        self._peers = peers
        self._timeout_s = timeout_s
        self.table = NoteTable(memory.part(TABLE_SHARE, TABLE_BYTES_MAX))
        self._outboxes: dict[int, _Outbox] = {}
        self.told = 0
        """Notes that clients sent to this agent."""
        self.dropped = 0
        """Of those, notes that did not reach a voter, counted for each voter: its outbox was full,
        or it did not answer."""
        memory.meter(lambda: {"notes": self.bytes_used}, lambda: (0, self.bytes_used))

    @property
    def bytes_used(self) -> int:
        return self.table.bytes_used + sum(box.bytes for box in self._outboxes.values())

    # -- what clients tell and ask ---------------------------------------------------

    async def tell(self, path: str, query: str, notes: list[BatchNote]) -> None:
        """Accepts notes of the query whose checkpoint is at `path`. Raises NotFound if there is
        none, so that invented queries cannot displace real ones; ReadOnly."""
        paths.check_writable(path)
        try:
            await self._namespace.query(q.Stat(f"{path.rstrip('/')}/{OFFSETS}"))
            size = (await self._namespace.query(q.Summarize(path))).bytes
        except NotFound:
            raise NotFound(f"{path} is no checkpoint: it has no {OFFSETS}") from None
        newest = max(note.batch for note in notes)
        packed = [
            pack(
                msgspec.structs.replace(
                    note, checkpoint_bytes=size if note.batch == newest else None
                )
            )
            for note in notes
        ]
        self.told += len(packed)
        if self._slot < self._voters:
            self.table.add(path, query, packed)
        self._pass_on(Row(path, query, packed))

    async def noted(self, path: str, limit: int) -> Noted:
        """What the leader has of the query."""
        found: Noted = await self._namespace.query(q.NotesOf(path, limit))
        return found

    # -- what other agents tell and ask ------------------------------------------------

    def answer(self, call: NotesCall) -> list[IndexEntry] | Row | None:
        """Raises BadRequest for anything but notes."""
        match call:
            case Tell(rows):
                try:
                    for row in rows:
                        self.table.add(row.path, row.query, row.notes)
                except msgspec.DecodeError as error:
                    raise BadRequest(f"malformed note: {error}") from None
                return None
            case Index(after):
                return self.table.index(after)
            case Fetch(path):
                return self.table.row(path)

    async def catch_up(self) -> None:
        """Fetches from the other voters what this one lacks."""
        for slot, address in self._others():
            try:
                await self._take_from(slot, address)
            except (DisklessError, msgspec.DecodeError) as error:
                log.info("notes not taken over from=%s why=%s", slot_name(slot), error)

    async def _take_from(self, slot: int, address: str) -> None:
        after, more = "", True
        while more:
            page = await self._peers.notes_index(slot, address, after, timeout_s=self._timeout_s)
            for entry in page:
                if self.table.lacks(entry):
                    row = await self._peers.notes_of(
                        slot, address, entry.path, timeout_s=self._timeout_s
                    )
                    if row is not None:
                        self.table.merge(row)
            more = bool(page)
            after = page[-1].path if page else after

    # -- passing on ----------------------------------------------------------------------

    def _pass_on(self, row: Row) -> None:
        """To each voter separately, so that a silent one does not delay the others."""
        weight = ROW_BYTES + len(row.path) + sum(NOTE_BYTES + len(note) for note in row.notes)
        for slot, _ in self._others():
            box = self._outboxes.setdefault(slot, _Outbox())
            if box.bytes + weight > OUTBOX_BYTES_MAX:
                self.dropped += len(row.notes)
                continue
            box.rows.append(row)
            box.bytes += weight
            if box.bytes >= OUTBOX_BYTES_SOON:
                box.fills.set()
            if box.sending is None:
                box.sending = asyncio.create_task(self._send(slot, box))

    async def _send(self, slot: int, box: _Outbox) -> None:
        """Sends all that is in the box, including what arrives meanwhile."""
        try:
            while box.rows:
                if slot != self._roster.leader:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PASS_ON_S):
                            await box.fills.wait()
                rows, box.rows, box.bytes = box.rows, [], 0
                box.fills.clear()
                try:
                    address = self._roster.address_of(slot) or ""
                    await self._peers.tell_notes(slot, address, rows, timeout_s=self._timeout_s)
                except DisklessError:
                    self.dropped += sum(len(row.notes) for row in rows)
        finally:
            box.sending = None

    def close(self) -> None:
        for box in self._outboxes.values():
            if box.sending is not None:
                box.sending.cancel()

    def _others(self) -> Iterator[tuple[int, str]]:
        """The other voters that are up."""
        for slot in range(self._voters):
            agent = self._roster.agents.get(slot)
            if slot == self._slot or agent is None or not agent.up:
                continue
            address = self._roster.address_of(slot)
            if address is not None:
                yield slot, address
