"""Many files at once, as a client reads them from agents that leave some of them out."""

from typing import Any, cast

from diskless.checksum import file_checksum
from diskless.client.caller import Caller
from diskless.client.connection import Reply
from diskless.client.many import read_many
from diskless.errors import BadFrame, CorruptData, NotFound
from diskless.protocol.messages import OpenedMany, OpenedOne, OpenMany, Refusal, Status

FILES = {f"/{n}": bytes([n]) * 100 for n in range(7)}


class Agent:
    """Brings two files along at most, and counts."""

    def __init__(self, *, knows: bool = True, damages: str = "") -> None:
        self.requests = 0
        self.alone: list[str] = []
        self._knows = knows
        self._damages = damages

    def call(self, kind: Any, meta: OpenMany, *, what: str) -> Reply:
        self.requests += 1
        if not self._knows:
            raise BadFrame("48 is no kind of request")
        files, payload = [], bytearray()
        for path in meta.paths:
            if path not in FILES:
                files.append(OpenedOne(refusal=Refusal("NotFound", path)))
                continue
            data = FILES[path]
            status = Status(path, False, len(data), 0, 1, f"{file_checksum(data):016x}")
            here = len(payload) < 200
            files.append(OpenedOne(status, here))
            if here:
                payload += bytes(100) if path == self._damages else data
        return Reply(1, OpenedMany(files), payload, None)

    def read(self, path: str) -> bytes:
        self.alone.append(path)
        return FILES[path]

    def many(self, *paths: str) -> dict[str, Any]:
        return dict(read_many(cast(Caller, self), paths, self.read))


def test_what_a_full_reply_left_out_is_asked_for_again_once_and_then_read_alone() -> None:
    agent = Agent()
    assert agent.many(*FILES) == FILES
    assert agent.requests == 2
    assert agent.alone == ["/4", "/5", "/6"]


def test_an_agent_that_does_not_know_the_request_is_read_from_one_by_one() -> None:
    agent = Agent(knows=False)
    assert agent.many(*FILES) == FILES
    assert agent.alone == list(FILES)


def test_a_file_that_was_damaged_on_its_way_is_not_given_out() -> None:
    found = Agent(damages="/1").many("/0", "/1", "/none")
    assert found["/0"] == FILES["/0"]
    assert isinstance(found["/1"], CorruptData)
    assert isinstance(found["/none"], NotFound)
