"""The page under a running Spark stream, and over a cluster with much in it.

One Spark, in a process of its own, writes to one cluster; what happens to the cluster is seen on
the page while batches go on.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from diskless.client import Client
from diskless.config import METRICS_PORT
from diskless.dashboard.api import ENTRIES_MAX
from diskless.dashboard.feed import UNWATCHED_S
from diskless.launch.local import LocalCluster
from diskless.model import ClusterStatus
from diskless.notes import BatchNote
from tests.browser.conftest import Browser
from tests.browser.test_page import address
from tests.cluster.test_tier_barrier import silence, speak
from tests.spark.streams import QUERY_S_MAX, Numbers, OtherJvm, Said
from tests.support import STRIPED, eventually, is_whole, kill, leader, start_cluster

pytestmark = pytest.mark.timeout(400)

CHECKPOINT = "/checkpoints/stream"
NUMBERS = Numbers(rows=200, keys=50)
STEPS = re.compile(
    r"took (\d+) ms \(walCommit \d+, state commit \d+, commitOffsets \d+\), 200 rows"
)


class Stream:
    """A query that goes on, and the cluster it writes to."""

    def __init__(self, cluster: LocalCluster, client: Client, jvm: OtherJvm, tier: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.tier = tier
        self._jvm = jvm
        self._said = Said()
        """It insists that no batch says something else when it runs again."""

    def batches(self) -> int:
        active, error = self._jvm.report("q", self._said)
        assert active, error
        return len(self._said.batches)

    def goes_on(self, batches: int = 2) -> None:
        """Returns when so many batches more are done."""
        wanted = self.batches() + batches
        eventually(lambda: self.batches() >= wanted, QUERY_S_MAX)


@pytest.fixture(scope="module")
def stream(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """Spark is started only where there is a browser."""
    tier = tmp_path_factory.mktemp("tier") / "tier"
    with (
        start_cluster(
            agents=6, data_shards=3, parity_shards=2, memory="128MiB", tuning=STRIPED,
            metrics_port=METRICS_PORT, tier=f"file://{tier}",
        ) as cluster,
        cluster.connect() as client,
        OtherJvm(cluster.uri, master="local[2]") as jvm,
    ):  # fmt: skip
        jvm.start("q", f"{cluster.uri}{CHECKPOINT[1:]}", numbers=NUMBERS)
        found = Stream(cluster, client, jvm, tier)
        found.goes_on(1)
        yield found
        jvm.stop("q")


def served_by(browser: Browser, cluster: LocalCluster) -> int:
    port = urlsplit(browser.driver.current_url).port
    doors = {slot: node.doors.http for slot, node in cluster.nodes.items()}
    (slot,) = [s for s, door in doors.items() if door and urlsplit(door.address).port == port]
    return slot


def bystander(browser: Browser, cluster: LocalCluster) -> int:
    """An agent that neither leads nor serves the page."""
    busy = {leader(cluster).slot, served_by(browser, cluster)}
    return next(slot for slot in cluster.nodes if slot not in busy)


def test_batches_are_shown_with_what_each_step_took(stream: Stream, browser: Browser) -> None:
    browser.open(address(stream.cluster, 5))
    eventually(lambda: STEPS.search(browser.text("checkpoints")), 60)
    assert "No application writes" not in browser.text("checkpoints")
    browser.driver.find_element("css selector", "#checkpoints summary").click()
    browser.shows("checkpoints", "walCommit", "addBatch", "commitOffsets", "It has no snapshots")
    rows = "return document.querySelectorAll('#checkpoints details[open] tbody tr').length"
    before = browser.run(rows)
    assert before >= 1
    stream.client.snapshot(CHECKPOINT, "seen")
    browser.shows("checkpoints", "seen")
    eventually(lambda: browser.run(rows) > before + 1, 60)  # it stays open, and goes on
    first = "return document.querySelector('#checkpoints tbody tr:nth-child(2)').innerText"
    assert re.search(r"\d+ ms.*\b200\b", browser.run(first), re.DOTALL)
    assert "This sets it" not in browser.text("checkpoints")
    assert browser.complaints() == []


def test_a_loss_is_shown_as_it_happens_and_the_margin_comes_back(
    stream: Stream, browser: Browser
) -> None:
    """By the stream of events that is open, in the look that finds it: the page asks for nothing,
    and the agent does not wait for the next time that it tells details."""
    cluster = stream.cluster
    browser.open(address(cluster, 5))
    browser.shows("top", "Margin 2 of 2", timeout_s=60)
    gone = bystander(browser, cluster)
    browser.run(NOTE_MARGINS)
    browser.run(ASK_NOTHING)
    eventually(lambda: browser.run("return window.asking") == 0)
    browser.asked()
    with looks(cluster, served_by(browser, cluster), gone) as seen:
        cluster.kill(gone)
        browser.shows(f"agent-{gone}", "down")
        browser.shows("top", "At risk", "Margin 1 of 2", f"agent-{gone} is down")
    assert browser.asked() == []
    first = seen.index("found down")
    assert seen[first + 1] == "told down"
    assert "told down" not in seen[:first]
    browser.run("delete document.hidden")
    stream.goes_on()
    cluster.revive(gone)
    eventually(lambda: is_whole(stream.client, 6), 60)
    browser.shows("top", "Margin 2 of 2")
    browser.shows("marks", f"agent-{gone} down", f"agent-{gone} up")
    seen = browser.run("return window.margins")
    assert [*dict.fromkeys(seen)][:2] == ["2", "1"], "nothing in between"
    assert seen[-1] == "2"
    stream.goes_on()
    assert browser.complaints() == []


ASK_NOTHING = """
Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
window.asking = 0;
const fetch_ = window.fetch;
window.fetch = (...all) => {
  window.asking++;
  return fetch_(...all).finally(() => window.asking--);
};
"""
"""A page that nobody looks at does not ask for queries and events, but is told all the same."""


@contextmanager
def looks(cluster: LocalCluster, slot: int, victim: int) -> Iterator[list[str]]:
    """What an agent finds of another at each look, and what it tells browsers, in their order."""
    page = cluster.nodes[slot].doors.page
    assert page is not None
    feed, seen = page.feed, []
    ask, say = feed._ask, feed._say

    async def asking() -> ClusterStatus:
        status = await ask()
        seen.append(f"found {status.agents[victim].state}")
        return status

    def saying(**said: Any) -> None:
        if "status" in said and "status" in said["status"]:
            seen.append(f"told {said['status']['status'].agents[victim].state}")
        say(**said)

    feed._ask, feed._say = asking, saying  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        feed._ask = ask
        del feed._say  # type: ignore[attr-defined]


NOTE_MARGINS = """
window.margins = [];
const note = () => {
  const margin = /Margin (-?\\d) of/.exec(document.getElementById("margin").innerText)?.[1];
  if (margin !== undefined && margin !== window.margins.at(-1)) window.margins.push(margin);
};
note();
new MutationObserver(note).observe(document.getElementById("margin"), { childList: true });
"""


def test_the_tiers_lag_is_shown_in_seconds_and_batches(stream: Stream, browser: Browser) -> None:
    browser.open(address(stream.cluster, 5))
    browser.shows("checkpoints", "tier", timeout_s=60)
    silence(stream.tier)
    try:
        stream.goes_on(3)
        browser.shows("top", "s would be lost", "batches of queries")
        behind = re.compile(r"(\d+) batches behind the tier")
        eventually(lambda: behind.search(browser.text("checkpoints")), 60)
    finally:
        speak(stream.tier)
    browser.shows("top", "Margin 2 of 2")

    def little() -> bool:
        found = re.search(r"(\d+) batch(es)? behind the tier", browser.text("checkpoints"))
        return found is None or int(found[1]) <= 1

    eventually(little, 60)


def test_a_new_leader_is_shown_and_batches_are_still_known(
    stream: Stream, browser: Browser
) -> None:
    """The last of these tests: agents that led are not missed by it."""
    cluster = stream.cluster
    eventually(lambda: len(stream.client.batch_notes(CHECKPOINT).notes) >= 3, 60)
    known = stream.client.batch_notes(CHECKPOINT).notes
    browser.open(address(cluster, 5))
    before = leader(cluster).slot
    browser.shows(f"agent-{before}", "leads", timeout_s=60)
    kill(cluster, before)
    after = leader(cluster).slot
    browser.shows(f"agent-{after}", "leads")
    browser.shows("marks", f"agent-{after} leads")
    kept = {note.batch for note in stream.client.batch_notes(CHECKPOINT).notes}
    assert {note.batch for note in known} <= kept
    stream.goes_on()
    eventually(lambda: STEPS.search(browser.text("checkpoints")), 60)
    cluster.revive(before)
    eventually(lambda: is_whole(stream.client, 6), 60)


# -- much ------------------------------------------------------------------------------------

FILES = 10_000
QUERIES = 60
NODES_MAX = 8_000
"""Of the document, with everything open that can be."""


@pytest.fixture(scope="module")
def large(driver: Any) -> Iterator[LocalCluster]:
    """Ten agents, ten thousand files, and sixty queries of many batches."""
    with start_cluster(
        agents=10, data_shards=4, parity_shards=2, memory="64MiB", metrics_port=METRICS_PORT
    ) as cluster:
        with cluster.connect() as client:
            for first in range(0, FILES, 500):
                client.write_many({f"/much/{n:05}": b"1" for n in range(first, first + 500)})
            for query in range(QUERIES):
                base = f"/queries/q{query:02}"
                client.write_many({f"{base}/offsets/{n}": b"1" for n in range(20)})
                client.write_many({f"{base}/commits/{n}": b"1" for n in range(20)})
                notes = [BatchNote(n, 1, rows=n, trigger_ms=5) for n in range(20)]
                client.note_batches(base, f"id-{query}", notes)
        yield cluster


def test_much_makes_the_page_neither_slow_nor_large(large: LocalCluster, browser: Browser) -> None:
    browser.open(address(large, 3))
    browser.shows("top", "Margin 2 of 2", timeout_s=60)
    browser.shows("checkpoints", "/queries/q00", "Not all directories were looked at", timeout_s=60)
    browser.driver.find_element("link text", "much/").click()
    browser.shows("entries", "00000", "more")
    assert browser.run("return document.querySelectorAll('#entries tr').length") <= ENTRIES_MAX + 2
    browser.driver.find_element("xpath", "//div[@id='entries']/button").click()
    browser.shows("entries", f"{ENTRIES_MAX:05}")
    for summary in browser.driver.find_elements("css selector", "#checkpoints summary")[:5]:
        browser.run("arguments[0].click()", summary)
    browser.shows("checkpoints", "It has no snapshots")
    assert browser.run("return document.getElementsByTagName('*').length") < NODES_MAX

    def looks() -> int:
        return sum("/api/queries" in url for url in asked)

    asked = browser.asked()
    before, total = looks(), len(asked)

    def looked_again() -> bool:
        asked.extend(browser.asked())
        return looks() >= before + 2

    eventually(looked_again, 6 * UNWATCHED_S)
    assert len(asked) - total <= 3 * (2 + 5) + 2, "two looks, and the five that are open in each"
    assert browser.complaints() == []
