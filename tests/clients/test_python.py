"""The Python client by the specification of clients: diskless/protocol/clients.json."""

from contextlib import closing
from typing import Any

import pytest

from diskless.client import attempts, caller, client, fetch, greeting, routes, upload
from diskless.client.caller import Caller
from diskless.client.client import Client
from diskless.client.descriptor import UNKNOWN_SLOT, Descriptor
from diskless.client.routes import Routes, address
from diskless.errors import BY_REASON, DisklessError
from diskless.protocol.messages import Peer
from tests.clients.scripted import CLUSTER, TOKEN, Scenario, Stage, content
from tests.clients.specification import SPECIFICATION, TIMEOUT_S, Actor, play, scenarios


class Python(Actor):
    def __init__(self, stage: Stage, timeout_s: float) -> None:
        peers = [Peer(UNKNOWN_SLOT, one, "", "", up=True) for one in stage.gateways]
        known = Descriptor(cluster=CLUSTER, name=CLUSTER, token=TOKEN, gateways=peers)
        self.client = Client(Caller(known, timeout_s=timeout_s))

    def do(self, op: str, size: int) -> tuple[str, str]:
        try:
            getattr(self, f"_{op}")(size)
        except DisklessError as error:
            return error.reason, str(error)
        return "done", ""

    def _stat(self, size: int) -> None:
        self.client.stat("/f")

    def _put(self, size: int) -> None:
        self.client.write("/f", bytes(size))

    def _upload(self, size: int) -> None:
        file = self.client.open("/f", "wb")
        file.write(bytes(size))
        file.close()

    def _read(self, size: int) -> None:
        assert self.client.read("/f") == content(size)

    def _read_many(self, size: int) -> None:
        paths = ["/a", "/b", "/c"]
        assert self.client.read_many(paths) == dict.fromkeys(paths, content(size))


def told(cases: list[Scenario]) -> list[Any]:
    return [pytest.param(one, id=one["name"]) for one in cases]


@pytest.mark.parametrize("scenario", told(scenarios("python")))
def test_conversation(scenario: Scenario) -> None:
    with closing(Stage(scenario)) as stage:
        actor = Python(stage, scenario.get("timeout_s", TIMEOUT_S))
        with actor.client:
            play(scenario, stage, actor)


@pytest.mark.parametrize("scenario", told(SPECIFICATION["routes"]))
def test_routes(scenario: Scenario) -> None:
    peers = [Peer(slot, f"h:{slot}", "", "h", up=True) for slot in range(3)]
    known = Routes(peers, salt="any", is_local=lambda path: False)
    by_place = known.peers
    now = 1000.0
    strangers = set[str]()
    for number, step in enumerate(scenario["steps"]):
        ((verb, value),) = step.items()
        match verb:
            case "leads":
                leader = 0xFFFF if value is None else by_place[value].slot
                known.learn(leader=leader, version=1)
            case "fails":
                known.failed(by_place[value], now)
            case "hinders":
                known.hindered(by_place[value], now)
            case "works":
                known.worked(by_place[value])
            case "refuses":
                strangers.add(address(by_place[value]))
                known.failed(by_place[value], now)
            case "tells the roster":
                known.replace(peers, version=1, now=now)
            case "no agent left":
                assert known.no_agent_left(strangers) == value, (number, step)
            case "passes_s":
                now += value
            case "small" | "bulk":
                found = known.pick(bulk=verb == "bulk", now=now)
                assert by_place.index(found) == value, (number, step)


def test_numbers() -> None:
    assert SPECIFICATION["numbers"] == {
        "attempts_min": attempts.ATTEMPTS_MIN,
        "garbled_max": attempts.GARBLED_MAX,
        "pause_s_min": attempts.PAUSE_S_MIN,
        "pause_s_max": attempts.PAUSE_S_MAX,
        "connect_s": greeting.CONNECT_TIMEOUT_S,
        "skip_s_min": routes.SKIP_S_MIN,
        "skip_s_max": routes.SKIP_S_MAX,
        "doubt": routes.DOUBT,
        "hindered_s": routes.HINDERED_S,
        "ask_s": routes.ASK_S,
        "refresh_s": routes.REFRESH_INTERVAL_S,
        "sequences_max": caller.SEQUENCES_MAX,
        "small_bytes_max": client.SMALL_BYTES_MAX,
        "frame_bytes": upload.FRAME_BYTES,
        "write_frames_max": upload.FRAMES_MAX,
        "unsealed_bytes_max": upload.UNSEALED_BYTES_MAX,
        "unsealed_bytes_limit": upload.UNSEALED_BYTES_LIMIT,
        "piece_bytes": fetch.PIECE_BYTES,
        "pieces_max": fetch.PIECES_MAX,
        "pieces_ahead_max": fetch.AHEAD_MAX,
        "prefetch_bytes": fetch.PREFETCH_BYTES,
        "reopens_max": fetch.REOPENS_MAX,
    }


def test_every_error_that_may_be_asked_again_is_decided() -> None:
    """Whoever adds one says here what clients do with it."""
    retryable = {reason for reason, error in BY_REASON.items() if error.retryable}
    assert set(SPECIFICATION["refusals"]) - {"about"} == retryable
    assert not set(SPECIFICATION["final"]) & retryable
    assert set(SPECIFICATION["final"]) < set(BY_REASON)
