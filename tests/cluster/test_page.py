"""What the page asks agents for, without a browser: rights, limits, and what watching costs."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from diskless.cli import run
from diskless.config import METRICS_PORT, MIB
from diskless.dashboard import checkpoints, closer
from diskless.dashboard.api import ENTRIES_MAX
from diskless.dashboard.feed import STREAM_BYTES
from diskless.dashboard.newest import BATCHES_TOLD, Names
from diskless.errors import Forbidden
from diskless.launch.local import LocalCluster
from diskless.notes import BatchNote
from diskless.spark import queries
from tests.cluster.test_metrics import address, ask
from tests.cluster.test_tier_barrier import silence, speak
from tests.conftest import Connect, StartCluster
from tests.support import STRIPED, content, eventually, kill, leader, on_loop
from tests.unit.test_queries import checkpoint, commit, plan

STREAMS = 100


@pytest.fixture
def cluster(start: StartCluster) -> LocalCluster:
    return start(
        agents=4, data_shards=2, parity_shards=1, tuning=STRIPED, metrics_port=METRICS_PORT
    )


def get(cluster: LocalCluster, path: str, token: str = "", slot: int = 0) -> Any:
    status, text = ask(cluster, slot, path, token or cluster.token("/", writes=False))
    assert status == 200, text
    return json.loads(text)


class Stream:
    """One that a browser would have open."""

    def __init__(self, cluster: LocalCluster, slot: int, token: str) -> None:
        self._connection = http.client.HTTPConnection(*address(cluster, slot), timeout=30)
        self._connection.request("GET", "/api/live", headers={"Authorization": f"Bearer {token}"})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def next(self) -> tuple[str, Any]:
        """The next message; EOFError at the end."""
        kind = ""
        while line := self._answer.readline():
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                return kind, json.loads(line[6:])
        raise EOFError

    def drain(self) -> None:
        while True:
            self.next()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def watching(cluster: LocalCluster, slot: int) -> int:
    page = cluster.nodes[slot].doors.page
    assert page is not None
    return page.feed.watching


def test_every_agent_tells_the_same_and_a_loss_is_told(
    cluster: LocalCluster, connect: Connect
) -> None:
    connect(cluster).write("/a", content(MIB))
    slot = next(slot for slot in cluster.nodes if slot != leader(cluster).slot)
    stream = Stream(cluster, slot, cluster.token("/nothing", writes=False))
    kind, series = stream.next()
    assert (kind, series["columns"][0]) == ("series", "time_ms")
    kind, said = stream.next()
    assert (kind, said["agent"]) == ("status", f"agent-{slot}")
    assert said["status"]["margin"] == 1
    gone = next(s for s in cluster.nodes if s not in (slot, leader(cluster).slot))
    kill(cluster, gone)
    while True:
        kind, said = stream.next()
        if kind == "status" and said["status"]["agents"][gone]["state"] == "down":
            break
    stream.close()


def test_a_revoked_token_ends_its_stream(cluster: LocalCluster, connect: Connect) -> None:
    stream = Stream(cluster, 0, cluster.token("/", name="watcher", writes=False))
    assert stream.next()[0] == "series"
    connect(cluster).revoke_token("watcher")
    eventually(lambda: on_loop(cluster, lambda: watching(cluster, 0)) == 0)
    with pytest.raises(EOFError):
        stream.drain()


def test_files_and_events_are_told_as_far_as_the_token_goes(
    cluster: LocalCluster, connect: Connect
) -> None:
    client = connect(cluster)
    client.write("/p/q1/big", content(MIB))
    client.write("/secret/b", b"1")
    token = cluster.token("/p/q1", writes=False)
    assert [one["path"] for one in get(cluster, "/api/list?path=/", token)["entries"]] == ["/p"]
    assert get(cluster, "/api/path?path=/p", token).keys() == {"status"}
    about = get(cluster, "/api/path?path=/p/q1/big", token)
    assert len(about["places"]["stripes"][0]["agents"]) == 3
    assert about["policy"]["entries"][0]["key"] == "durability"
    for path in ("/api/list?path=/secret", "/api/path?path=/secret/b", "/api/path?path=/secret"):
        status, text = ask(cluster, 0, path, token)
        assert status == 403, text
    events = get(cluster, "/api/events", token)["events"]
    assert any("/p/q1/big" in event["text"] for event in events)
    assert not any("secret" in event["text"] for event in events)
    assert ask(cluster, 0, "/api/path?path=/none")[0] == 403, "it is not of that token's"
    assert ask(cluster, 0, "/api/path?path=/none", cluster.token("/"))[0] == 404
    assert ask(cluster, 0, "/api/path?path=relative", cluster.token("/"))[0] == 400
    assert ask(cluster, 0, "/api/events?after=x", cluster.token("/"))[0] == 400


def test_answers_are_pages(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    client.write_many({f"/d/{n:04}": b"" for n in range(ENTRIES_MAX + 5)})
    page = get(cluster, "/api/list?path=/d")
    assert len(page["entries"]) == ENTRIES_MAX
    assert page["more"]
    after = page["entries"][-1]["path"].rpartition("/")[2]
    rest = get(cluster, f"/api/list?path=/d&after={after}")
    assert (len(rest["entries"]), rest["more"]) == (5, False)


def test_checkpoints_are_found_with_their_batches(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    for batch in range(30):
        client.write_many({f"/c/q1/offsets/{batch}": b"1"})
        if batch < 29:
            client.write(f"/c/q1/commits/{batch}", b"1")
    client.note_batches(
        "/c/q1", "id", [BatchNote(n, n, rows=n, trigger_ms=7) for n in (0, 27, 28, 29)]
    )
    client.snapshot("/c/q1", "one")
    (found,) = get(cluster, "/api/queries", slot=1)["checkpoints"]
    assert (found["path"], found["last"], found["behind"]) == ("/c/q1", 28, None)
    assert [one["batch"] for one in found["batches"]] == [29, 28]
    assert found["batches"][0]["took_ms"] is None
    assert found["batches"][0]["note"] is None, "it is of another run: this one is not done"
    assert found["batches"][1]["took_ms"] >= 0
    assert found["batches"][1]["note"]["rows"] == 28
    assert found["lease"] is None, "without its metadata it is nobody's"
    assert get(cluster, "/api/queries", cluster.token("/c/q2"))["checkpoints"] == []
    whole = get(cluster, "/api/query?path=/c/q1", slot=2)
    assert [one["batch"] for one in whole["batches"]] == [*range(29, -1, -1)]
    noted = {one["batch"] for one in whole["batches"] if one["note"] is not None}
    assert noted == {0, 27, 28}
    assert [one["name"] for one in whole["snapshots"]] == ["one"]
    for path, status in (("/c/q1", 403), ("/none", 403)):
        assert ask(cluster, 0, f"/api/query?path={path}", cluster.token("/c/q2"))[0] == status
    assert ask(cluster, 0, "/api/query?path=/none", cluster.token("/"))[0] == 404


def test_the_last_batch_is_the_greatest_number_of_many(
    cluster: LocalCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(cluster)
    for first in range(0, 1200, 200):
        numbers = range(first, first + 200)
        client.write_many({f"/c/q1/offsets/{number}": b"1" for number in numbers})
        client.write_many({f"/c/q1/commits/{number}": b"1" for number in numbers})
    client.write("/c/q1/offsets/1200", b"1")
    (found,) = get(cluster, "/api/queries", slot=1)["checkpoints"]
    assert (found["last"], [one["batch"] for one in found["batches"]]) == (1199, [1200, 1199])
    whole = get(cluster, "/api/query?path=/c/q1", slot=1)
    assert [one["batch"] for one in whole["batches"]] == [*range(1200, 1200 - BATCHES_TOLD, -1)]
    assert [one["took_ms"] is None for one in whole["batches"]] == [True] + [False] * 99
    monkeypatch.setattr(checkpoints, "Names", lambda: Names(slices=1))
    (found,) = get(cluster, "/api/queries", slot=2)["checkpoints"]
    assert (found["complete"], found["batches"]) == (False, []), "it says that it did not look"


@pytest.mark.parametrize("how", ["hdfs", "changelog-2"])
def test_batches_are_judged_as_the_verb_does(
    cluster: LocalCluster, connect: Connect, how: str
) -> None:
    client = connect(cluster)
    files = checkpoint(9, how)
    lost = next(path for path in files if path.startswith("state/0/1/6"))
    kept = {path: data for path, data in files.items() if path != lost}
    client.write_many({f"/c/q1/{path}": data for path, data in kept.items()})
    client.write_many({"/c/q1/offsets/9": plan(9), "/c/q1/commits/2": b"no commit"}, overwrite=True)
    shown = queries.show(client, "/c/q1")
    told = get(cluster, "/api/batches?path=/c/q1", cluster.token("/c", writes=False), slot=1)
    assert told["problem"] == ""
    assert told["query"]["id"] == shown.query.query_id
    assert (told["query"]["operators"], told["query"]["partitions"]) == (["stateStoreSave"], 2)
    assert told["query"]["providers"] == list(shown.query.providers)
    assert told["state_bytes"] == shown.query.state_bytes
    assert [one["batch"] for one in told["batches"]] == [*range(9, -1, -1)]
    for one, other in zip(told["batches"], reversed(shown.batches), strict=True):
        assert (one["why_not"], one["unknown"]) == (other.why_not, "")
        assert (one["files"], one["bytes"]) == (other.files, other.bytes)
        assert one["offsets"] == [f'{{"logOffset":{other.number}}}']
    why_not = {one["batch"]: one["why_not"] for one in told["batches"]}
    assert "was not committed" in why_not[9]
    assert "operator 0, partition 1" in why_not[6]
    assert "commits/2 does not begin with the version" in why_not[2]
    assert (why_not[4], why_not[8]) == ("", "")


def test_what_cannot_be_judged_is_said(
    cluster: LocalCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(cluster)
    files = checkpoint(3)
    client.write_many({f"/c/q1/{path}": data for path, data in files.items()})
    client.write("/c/q1/commits/1", commit(1) + b" " * 70_000, overwrite=True)
    told = get(cluster, "/api/batches?path=/c/q1")
    assert [one["why_not"] for one in told["batches"]] == [None, None, ""]
    assert told["batches"][1]["unknown"].startswith("commits/1 was not read: its 70,0")
    client.write_many({"/c/other/a": b"1", "/c/odd/offsets/x": b"1", "/c/odd/commits/0": b"1"})
    for path in ("/c/other", "/c/odd", "/c/other/a"):
        told = get(cluster, f"/api/batches?path={path}")
        assert (told["batches"], told["query"]) == ([], None)
        assert "it is no checkpoint of a query" in told["problem"]
    monkeypatch.setattr(closer, "FILES_MAX", 5)
    told = get(cluster, "/api/batches?path=/c/q1", slot=1)
    assert told["problem"] == "it has more than 5 files"
    assert {one["why_not"] for one in told["batches"]} == {None}
    assert told["batches"][0]["offsets"] == ['{"logOffset":2}']
    token = cluster.token("/c/q2", writes=False)
    assert ask(cluster, 0, "/api/batches?path=/c/q1", token)[0] == 403
    assert ask(cluster, 0, "/api/batches?path=/none", cluster.token("/"))[0] == 404


def test_what_the_tier_lacks_is_counted(
    start: StartCluster, connect: Connect, tmp_path: Path
) -> None:
    cluster = start(
        agents=3, data_shards=1, parity_shards=1, metrics_port=METRICS_PORT,
        tier=f"file://{tmp_path}/tier",
    )  # fmt: skip
    client = connect(cluster)
    client.policies.set("/memory", "durability", "memory")
    client.write_many({"/memory/q2/offsets/0": b"1", "/memory/q2/commits/0": b"1"})
    for batch in range(3):
        client.write_many({f"/c/q1/offsets/{batch}": b"1"})
        client.write_many({f"/c/q1/commits/{batch}": b"1"})
    client.tier.flush()

    def behind() -> Any:
        found = get(cluster, "/api/queries")["checkpoints"]
        return {one["path"]: one["behind"] for one in found}

    eventually(lambda: behind() == {"/c/q1": 0, "/memory/q2": None})
    silence(tmp_path / "tier")
    client.write_many({"/c/q1/offsets/3": b"1"})
    client.write_many({"/c/q1/commits/3": b"1", "/c/q1/offsets/4": b"1"})
    eventually(lambda: behind()["/c/q1"] == 1)
    whole = get(cluster, "/api/query?path=/c/q1")
    assert [one["in_tier"] for one in whole["batches"]] == [False, False, True, True, True]
    assert (whole["behind"], whole["batches"][0]["took_ms"]) == (1, None)
    speak(tmp_path / "tier")
    client.tier.flush()
    eventually(lambda: behind()["/c/q1"] == 0)


def test_many_browsers_cost_one_search(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    client.write_many({"/c/q1/offsets/0": b"1", "/c/q1/commits/0": b"1"})
    page = cluster.nodes[1].doors.page
    assert page is not None
    token = cluster.token("/", writes=False)
    before = page.api.checkpoints.searches
    with ThreadPoolExecutor(20) as browsers:
        found = list(browsers.map(lambda _: get(cluster, "/api/queries", token, slot=1), range(60)))
    assert all(len(one["checkpoints"]) == 1 for one in found)
    assert page.api.checkpoints.searches - before <= 10
    other = get(cluster, "/api/queries", cluster.token("/c/q2"), slot=1)
    assert other["checkpoints"] == [], "what others may see is not told"


def test_who_writes_to_a_checkpoint_is_told(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster)
    client.write_many({"/c/q1/metadata": b"{}", "/c/q1/commits/0": b"1"})

    def application() -> str | None:
        client.write("/c/q1/offsets/0", b"1", overwrite=True)  # else its lease would end
        (found,) = get(cluster, "/api/queries", slot=1)["checkpoints"]
        return found["lease"] and found["lease"]["application"]

    eventually(lambda: application() == client._caller.application)


def test_streams_are_bounded_and_charged(start: StartCluster) -> None:
    cluster = start(
        agents=3, data_shards=1, parity_shards=1, memory="16MiB", metrics_port=METRICS_PORT
    )
    node = cluster.nodes[0]
    before = on_loop(cluster, lambda: node.memory.by_kind()["replies"])
    token = cluster.token("/", writes=False)
    streams = [Stream(cluster, 0, token) for _ in range(17)]
    assert [stream.status for stream in streams] == [200] * 16 + [503]
    charged = on_loop(cluster, lambda: node.memory.by_kind()["replies"]) - before
    assert charged == 16 * STREAM_BYTES
    for stream in streams:
        stream.close()
    eventually(lambda: on_loop(cluster, lambda: node.memory.by_kind()["replies"]) == before)


@pytest.mark.parametrize(
    "path",
    [
        "/api/live",
        "/api/list",
        "/api/path",
        "/api/events",
        "/api/queries",
        "/api/query",
        "/api/batches",
        "/api/none",
    ],
)
def test_without_a_token_the_page_learns_nothing(cluster: LocalCluster, path: str) -> None:
    assert ask(cluster, 0, path, "") == (
        401,
        "a token is needed: see `diskless token create --help`\n",
    )


def test_the_page_itself_needs_none_and_tells_nothing(cluster: LocalCluster) -> None:
    for path in ("/", "/app.js", "/common.js", "/queries.js", "/style.css", "/icon.svg"):
        status, text = ask(cluster, 0, path, "")
        assert status == 200
        assert cluster.settings.name not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), "nobody else"
    assert ask(cluster, 0, "/../door.py", "")[0] == 401


def test_the_verb_gives_an_address_that_works(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["--cluster", cluster.settings.name, "dashboard", "--json"]
    eventually(lambda: run(asked) == 0)
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert len(told["addresses"]) == 4
    base, _, token = told["address"].partition("/#token=")
    assert base.endswith(f":{address(cluster, 0)[1]}")
    assert get(cluster, "/api/list", token)["entries"] == []
    with cluster.connect(token=token) as client, pytest.raises(Forbidden):
        client.write("/a", b"1")


def test_while_nobody_watches_the_hour_is_kept_and_nothing_is_said(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    assert node.doors.page is not None
    feed = node.doors.page.feed
    eventually(lambda: on_loop(cluster, lambda: feed.watching) == 0)
    on_loop(cluster, feed._forget)
    cluster.run(feed._look())
    assert on_loop(cluster, lambda: dict(feed._said)) == {}
    assert feed.series._before is not None
    with closing(Stream(cluster, 0, cluster.token("/nothing", writes=False))) as stream:
        while stream.next()[0] != "status":
            pass


def test_a_hundred_watchers_are_told_by_one_look(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    assert node.doors.page is not None
    feed = node.doors.page.feed
    asked = 0
    ask_ = feed._ask

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        return await ask_()

    feed._ask = counted
    token = cluster.token("/nothing", writes=False)
    with ExitStack() as open_:
        streams = [Stream(cluster, 0, token) for _ in range(STREAMS)]
        for stream in streams:
            open_.callback(stream.close)
        before = asked
        for stream in streams:
            while stream.next()[0] != "status":
                pass
        eventually(lambda: asked >= before + 3)
        assert on_loop(cluster, lambda: feed.watching) == STREAMS
        assert asked < before + STREAMS
    eventually(lambda: on_loop(cluster, lambda: feed.watching) == 0)
