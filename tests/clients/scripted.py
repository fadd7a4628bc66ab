"""Agents that follow a script: what diskless/protocol/clients.json is run with.

They are real sockets with the real handshake, and speak the frames of docs/frames.md, with nothing
behind them: each request has a plausible answer, unless the script says otherwise. What they were
asked, by whom of them, is noted in words that do not depend on which agent a client happens to
prefer: agent 0 leads, and is slow, so that bulk goes to another one; the others are A, B, … in the
order in which they were first asked.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diskless.checksum import file_checksum
from diskless.errors import BY_REASON
from diskless.identity.claims import Keyring
from diskless.identity.handshake import Doorkeeper, Knock, Pending, Proof
from diskless.protocol.frames import (
    HEADER_BYTES,
    Header,
    check_sound,
    checksum_bytes,
    pack_head,
    unpack_header,
)
from diskless.protocol.messages import Kind

CLUSTER = "scripted"
KEYRING = Keyring(cluster=CLUSTER, root=bytes(32))
TOKEN = KEYRING.client("tester", paths=["/"]).token
MIB = 1 << 20
AGENTS = 3
LEADER = 0
GRACE_S = 0.1
"""How long it is looked whether a client has more under way than it should."""
END_S = 10.0
_MUTATIONS = (Kind.PUT, Kind.COMMIT, Kind.PRUNE)
_STREAMED = (Kind.WRITE, Kind.COMMIT)

Scenario = dict[str, Any]


@dataclass
class _Rule:
    """The first one that fits a request says how it is answered."""

    of: str
    answer: str
    by: list[str] | None = None
    after: int = 0
    times: int | None = None

    def fits(self, kind: str, label: str) -> bool:
        if self.of != kind or self.times == 0 or (self.by is not None and label not in self.by):
            return False
        if self.after:
            self.after -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class _Visit:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.pending: Pending | None = None

    async def frame(self) -> tuple[Header, dict[str, Any], bytes]:
        packed = await self.reader.readexactly(HEADER_BYTES)
        header = unpack_header(packed)
        checksum = await self.reader.readexactly(checksum_bytes(header.version))
        meta = await self.reader.readexactly(header.meta_bytes)
        payload = await self.reader.readexactly(header.payload_bytes)
        check_sound(header.version, packed + meta, payload, checksum)
        return header, json.loads(meta), payload

    async def swallow(self) -> None:
        """Reads on without looking: a reset would take back what was sent before."""
        while await self.reader.read(MIB):
            pass


class _Agent:
    def __init__(self, stage: "Stage", slot: int) -> None:
        self.slot = slot
        self.port = 0
        self._stage = stage
        self._doorkeeper = Doorkeeper(KEYRING, slot=slot)
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=8 * MIB)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._visits):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = _Visit(reader, writer)
        self._visits.add(writer)
        try:
            while True:
                header, meta, payload = await visit.frame()
                if header.kind == Kind.HELLO:
                    self._challenge(visit, header, meta)
                elif header.kind == Kind.PROVE:
                    assert visit.pending is not None
                    visit.pending.admit(Proof(meta["proof"]))
                    self.reply(visit, header, self._stage.welcome())
                else:
                    await self._stage.asked(self, visit, header, meta, payload)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._visits.discard(writer)
            writer.close()

    def _challenge(self, visit: _Visit, header: Header, meta: dict[str, Any]) -> None:
        knock = Knock(meta["claims"], meta["nonce"])
        visit.pending = self._doorkeeper.challenge(knock, door="gateway")
        told = visit.pending.challenge
        answer = {"slot": told.slot, "nonce": told.nonce, "proof": told.proof}
        self.reply(visit, header, answer)

    def reply(
        self,
        visit: _Visit,
        header: Header,
        meta: dict[str, Any],
        payload: bytes = b"",
        *,
        kind: Kind = Kind.DONE,
        garbled: bool = False,
    ) -> None:
        parts = [payload] if payload else []
        stage = self._stage
        head = pack_head(
            kind,
            header.request,
            json.dumps(meta).encode(),
            parts,
            version=header.version,
            leader=stage.leader,
            roster=stage.roster_version,
        )
        if garbled:
            head = head[:-1] + bytes([head[-1] ^ 1])
        with suppress(ConnectionError):
            visit.writer.writelines([head, *parts])


class Stage:
    """The agents of one scenario, on an event loop in a thread of its own."""

    def __init__(self, scenario: Scenario) -> None:
        self.leader = LEADER
        self.roster_version = 1
        self.trace: list[tuple[str, str]] = []
        """Kinds, and what was asked for of whom."""
        self.patient: dict[str, list[bool]] = {}
        self.under_way: Counter[str] = Counter()
        """The most at once."""
        self.size = 0
        """Of the file that is opened or read."""
        self._rules = [_Rule(**rule) for rule in scenario.get("script", [])]
        self._epochs = list(scenario.get("epochs", []))
        """What those say who are greeted after the meeting, one after the other; then 1 again."""
        self._meeting = True
        self._labels: dict[int, str] = {LEADER: "leader"}
        self._sessions = 0
        self._held: dict[str, list[Coroutine[Any, Any, None]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.agents = [_Agent(self, slot) for slot in range(AGENTS)]
        for agent in self.agents:
            self.run(agent.listen())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(END_S)

    def close(self) -> None:
        for agent in self.agents:
            self.run(agent.end())
        self.run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        self._loop.close()

    async def _end_tasks(self) -> None:
        for held in self._held.values():
            for one in held:
                one.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def begin(self) -> None:
        """The client has met the agents: from now on the script counts."""
        self._meeting = False

    @property
    def gateways(self) -> list[str]:
        """What a client is told of to begin with: the leader, so that epochs are its own."""
        return [f"127.0.0.1:{self.agents[LEADER].port}"]

    # What agents answer.

    def roster(self) -> dict[str, Any]:
        return {
            "agents": [
                {
                    "slot": agent.slot,
                    "gateway": f"127.0.0.1:{agent.port}",
                    "socket": "",
                    "host": "localhost",
                    "up": True,
                    "slow": agent.slot == LEADER,
                }
                for agent in self.agents
            ]
        }

    def welcome(self) -> dict[str, Any]:
        return self.roster() | {
            "epoch": self._epochs.pop(0) if self._epochs and not self._meeting else 1,
        }

    async def asked(
        self, agent: _Agent, visit: _Visit, header: Header, meta: dict[str, Any], payload: bytes
    ) -> None:
        kind = Kind(header.kind)
        if kind is Kind.ROSTER or self._meeting:
            answer = (
                self.roster()
                if kind is Kind.ROSTER
                else self._answer(visit, kind, meta, payload)[0]
            )
            agent.reply(visit, header, answer)
            return
        name = kind.name.lower()
        label = self._labels.setdefault(agent.slot, "ABCD"[len(self._labels) - 1])
        self.trace.append((name, _describe(kind, label, meta)))
        self.patient.setdefault(name, []).append(bool(header.leader))
        rule = next((rule for rule in self._rules if rule.fits(name, label)), None)
        verb, _, rest = (rule.answer if rule else "answer").partition(" ")
        if verb == "silence":
            return
        if verb == "refuse":
            await self._refuse(agent, visit, header, rest)
        elif verb == "close":
            await self._close(visit)
        elif verb == "hold":
            self._hold(agent, visit, header, meta, payload, most=int(rest))
        else:
            if verb == "leads":
                self.leader = int(rest)
            if verb == "moves":
                await self._move(self.agents[int(rest)])
            answer, data = self._answer(visit, kind, meta, payload, seals=verb != "seal")
            agent.reply(visit, header, answer, data, garbled=verb == "garble")
            await visit.writer.drain()

    async def _refuse(self, agent: _Agent, visit: _Visit, header: Header, words: str) -> None:
        reason, _, then = words.partition(" ")
        refusal = {
            "reason": reason,
            "message": f"the script says {reason}",
            "retryable": BY_REASON[reason].retryable,
        }
        agent.reply(visit, header, refusal, kind=Kind.REFUSED)
        if then:
            await self._close(visit)

    async def _close(self, visit: _Visit) -> None:
        visit.writer.write_eof()
        await visit.swallow()
        raise ConnectionError("as the script says")

    async def _move(self, agent: _Agent) -> None:
        """It is started again elsewhere, as another process."""
        server = agent._server
        assert server is not None
        server.close()
        await agent.listen()
        self.roster_version += 1

    def _hold(
        self, agent: _Agent, visit: _Visit, header: Header, meta: dict[str, Any], payload: bytes,
        *, most: int,
    ) -> None:  # fmt: skip
        """Answers nothing before so many are under way, and then the last of them first."""
        kind = Kind(header.kind)
        name = kind.name.lower()
        answer, data = self._answer(visit, kind, meta, payload)

        async def answer_later() -> None:
            agent.reply(visit, header, answer, data)
            await visit.writer.drain()

        held = self._held.setdefault(name, [])
        held.append(answer_later())
        self.under_way[name] = max(self.under_way[name], len(held))
        left = any(rule.of == name for rule in self._rules)
        if len(held) == most and left:
            asyncio.get_running_loop().create_task(self._release(name, in_order=kind is Kind.WRITE))

    async def _release(self, name: str, *, in_order: bool) -> None:
        """After a moment, in which a client that has room for more would send it."""
        await asyncio.sleep(GRACE_S)
        self._rules = [rule for rule in self._rules if rule.of != name]
        held, self._held[name] = self._held[name], []
        for one in held if in_order else reversed(held):
            await one

    def _answer(
        self, visit: _Visit, kind: Kind, meta: dict[str, Any], payload: bytes, *, seals: bool = True
    ) -> tuple[dict[str, Any], bytes]:
        match kind:
            case Kind.SESSION:
                self._sessions += 1
                return {"session": self._sessions}, b""
            case Kind.STAT:
                return _status(meta["path"], b""), b""
            case Kind.PUT | Kind.COMMIT:
                return {"files": [_status(file["path"], b"") for file in meta["files"]]}, b""
            case Kind.WRITE:
                return self._write(visit, meta, payload, seals=seals), b""
            case Kind.OPEN:
                return self._open(meta)
            case Kind.OPEN_MANY:
                data = content(self.size)
                one = [{"file": _status(path, data), "here": True} for path in meta["paths"]]
                return {"files": one}, data * len(one)
            case Kind.SUMMARY:
                return {"files": 0, "directories": 1, "bytes": 0}, b""
            case Kind.PRUNE:
                return {"deleted": len(meta["names"])}, b""
            case Kind.READ:
                return {}, b"".join(
                    content(MIB, int(stripe))[start : start + length]
                    for stripe, start, length, *_ in meta["extents"]
                )
        return {}, b""

    def _write(
        self, visit: _Visit, meta: dict[str, Any], payload: bytes, *, seals: bool
    ) -> dict[str, Any]:
        """Each frame is a stripe, and sealed at once."""
        received = meta["offset"] + len(payload)
        sealed = [[f"{meta['offset']}", 4, 2, len(payload), []]] if seals else []
        return {"received": received, "sealed_from": meta["offset"], "sealed": sealed}

    def _open(self, meta: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        data = content(self.size)
        stripes = range(-(-self.size // MIB))
        extents = [[f"{n}", 0, min(MIB, self.size - n * MIB)] for n in stripes]
        return {"file": _status(meta["path"], data), "extents": extents}, data[: meta["prefetch"]]


def content(size: int, stripe: int = 0) -> bytes:
    """Of a file, or of one stripe of it: no two stripes are alike."""
    whole, rest = divmod(size, MIB)
    parts = [bytes([1 + (stripe + n) % 250]) * MIB for n in range(whole)]
    return b"".join([*parts, bytes([1 + (stripe + whole) % 250]) * rest])


def _status(path: str, data: bytes) -> dict[str, Any]:
    return {
        "path": path,
        "directory": False,
        "size": len(data),
        "mtime_ms": 1,
        "id": 7,
        "checksum": f"{file_checksum(data):016x}",
    }


def _describe(kind: Kind, label: str, meta: dict[str, Any]) -> str:
    words = [label]
    if kind in _MUTATIONS:
        words.append(f"{meta['session']}.{meta['sequence']}")
    if kind in _STREAMED:
        words.append(f"@{meta['offset'] // MIB}")
        if meta.get("resume"):
            words.append(f"resume {len(meta['resume'])}")
    return " ".join(words)
