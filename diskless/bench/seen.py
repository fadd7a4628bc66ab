"""What it costs to be seen: the same work on a cluster with metrics and the page and on one
without, in turns; a scrape, watching streams, and how soon a loss is told, and shown in a
browser while Spark streams; what Spark's listener costs a small query.

CPU is that of all agents and, of commits, of this process too; of batches, also of the JVM.
"""

import http.client
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil

from diskless.bench import works
from diskless.bench.browser import NoBrowser, start_chromium
from diskless.bench.clusters import QUICK_FREEING, Cluster, cluster, shape_settings
from diskless.bench.processes import cost_of, cpu_s
from diskless.bench.query import Plan
from diskless.bench.recorder import Recorder, Say, in_turn
from diskless.bench.sizes import Sizes
from diskless.bench.spark import _session, _start, _turn, parse_setup
from diskless.client.descriptor import load
from diskless.model import parse_slot
from diskless.notes import BatchNote
from diskless.workloads.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SYSTEM = works.diskless(works.MAIN_SHAPE)
PORT = 18_470
IDLE_S = 20.0
SCRAPES = 100
WATCHERS = 100
WATCHED_S = 10.0
TOLD_TIMEOUT_S = 30.0
ASSETS = ("/", "/app.js", "/common.js", "/queries.js", "/style.css", "/icon.svg")
NOTES = 500
SMALL = Plan(checkpoint="", keys=1000, rows_per_batch=200)
SMALL_SETUP = "hdfs-2"
SHOWN_POLL_S = 0.05

WHEN_DOWN = """
const slot = arguments[0];
window.shownMs = null;
const look = () => {
  if (window.shownMs || !document.getElementById(slot)?.innerText.includes("down")) return;
  requestAnimationFrame(() => { window.shownMs ??= Date.now(); });
};
new MutationObserver(look).observe(document.getElementById("hosts"), { childList: true });
"""
"""Has the page note when an agent's card says that it is down, as it is about to be drawn."""


class Side:
    """One of the two clusters, and what its leader serves."""

    def __init__(self, running: Cluster, *, shown: bool) -> None:
        self.shown = shown
        self.running = running
        self._agents = {slot: psutil.Process(pid) for slot, pid in running.pids().items()}
        self._numbers = count()
        self._token = load(running.name).keyring.client("bench", writes=False).token

    def commit(self, times: int, data: bytes) -> None:
        for _ in range(times):
            path = f"/t/{next(self._numbers) % 1000}"
            self.running.client.write(path, data, overwrite=True)

    def cpu_s(
        self, work: Callable[[], object], *, agents_only: bool = True, only: int | None = None
    ) -> float:
        agents = [one for slot, one in self._agents.items() if only in (None, slot)]
        processes = agents if agents_only else [psutil.Process(), *agents]
        before_s = cpu_s(processes)
        work()
        return cpu_s(processes) - before_s

    @property
    def leader(self) -> int:
        return parse_slot(self.running.client.status().leader)

    def connect(self, slot: int) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """To what an agent serves, and the headers that it wants."""
        at = urlsplit(self.running.client.status().agents[slot].http)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
        return connection, {"Authorization": f"Bearer {self._token}"}

    def get(self, path: str, slot: int | None = None) -> http.client.HTTPResponse:
        connection, headers = self.connect(self.leader if slot is None else slot)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        return answer

    def kill(self, slot: int) -> float:
        """When it was."""
        os.kill(self._agents[slot].pid, signal.SIGKILL)
        return time.monotonic()


def run(sizes: Sizes, say: Say) -> Recorder:
    record = Recorder("seen")
    settings = shape_settings(works.MAIN_SHAPE, **QUICK_FREEING)
    with ExitStack() as stack:
        sides = []
        for shown in (False, True):
            port = PORT if shown else 0
            chosen = replace(settings, name=f"bench-seen-{shown:d}", metrics_port=port)
            sides.append(Side(stack.enter_context(cluster(chosen)), shown=shown))
        say("with metrics and the page and without, in turns")
        for turn, into in record.turns(sizes.repetitions):
            order = in_turn(sides, turn)
            _commits(order, sizes, into)
        _idle(sides, record)
        _notes(sides[1], record)
        _scrape(sides[1], record)
        _first_view(sides[1], record)
        say(f"{WATCHERS} watching streams")
        _watchers(sides[1], record)
        say("a SIGKILL, as it is shown")
        _kill(sides[1], record)
        running = sides[1].running
        running.wait_recovered()
        with _session(running.name) as spark:
            parse_setup(SMALL_SETUP).apply(spark)
            if sizes.noted_turns:
                say("a small query with Spark's listener and without, in turns")
                _listener(spark, running, sizes, record)
            say("SIGKILLs, as a browser shows them")
            _kills_shown(spark, running, sizes, record)
    return record


def _commits(sides: list[Side], sizes: Sizes, record: Recorder) -> None:
    data = os.urandom(sizes.tiny_bytes)

    def work(side: Side) -> None:
        for _ in range(4):
            side.commit(sizes.tiny_puts // 4, data)
        if side.shown:
            side.get("/metrics").read()

    for side in sides:
        spent_s = side.cpu_s(lambda side=side: work(side), agents_only=False)
        name = works.SEEN_COMMIT_SHOWN if side.shown else works.SEEN_COMMIT
        record.add(name, SYSTEM, 1000 * spent_s / sizes.tiny_puts, "ms CPU")


def _idle(sides: list[Side], record: Recorder) -> None:
    agents = len(sides[0].running.pids())
    spent = {side.shown: side.cpu_s(lambda: time.sleep(IDLE_S)) for side in sides}
    record.add(
        works.SEEN_IDLE_MORE, SYSTEM, (spent[True] - spent[False]) / IDLE_S / agents, "of a core"
    )


def _notes(side: Side, record: Recorder) -> None:
    """One for each batch of a query: what that costs all agents and this process."""
    client = side.running.client
    client.write("/noted/offsets/0", b"1")

    def work(first: int) -> None:
        for batch in range(first, first + NOTES):
            note = BatchNote(batch, batch, rows=1000, trigger_ms=500, wal_commit_ms=20)
            client.note_batches("/noted", "bench", [note])

    work(0)
    spent_s = side.cpu_s(lambda: work(NOTES), agents_only=False)
    record.add(works.SEEN_NOTE, SYSTEM, 1000 * spent_s / NOTES, "ms CPU")


def _scrape(side: Side, record: Recorder) -> None:
    """Over one connection, as Prometheus does."""
    slot = side.leader
    connection, headers = side.connect(slot)

    def work() -> None:
        for _ in range(SCRAPES):
            connection.request("GET", "/metrics", headers=headers)
            connection.getresponse().read()

    work()
    spent_s = side.cpu_s(work, only=slot)
    connection.close()
    record.add(works.SEEN_SCRAPE, SYSTEM, 1000 * spent_s / SCRAPES, "ms CPU")


def _first_view(side: Side, record: Recorder) -> None:
    size = sum(len(side.get(path).read()) for path in ASSETS)
    stream = side.get("/api/live")
    size += sum(len(stream.readline()) for _ in range(6))
    stream.close()
    record.add(works.SEEN_FIRST_VIEW, SYSTEM, size / 1000, "KB")


def _watchers(side: Side, record: Recorder) -> None:
    slot = side.leader
    alone_s = side.cpu_s(lambda: time.sleep(WATCHED_S))
    streams = [side.get("/api/live", slot) for _ in range(WATCHERS)]

    def drain(stream: http.client.HTTPResponse) -> None:
        while stream.readline():
            pass

    threads = [Thread(target=drain, args=(stream,), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    spent_s = side.cpu_s(lambda: time.sleep(WATCHED_S)) - alone_s
    record.add(works.SEEN_WATCHERS, SYSTEM, spent_s / WATCHED_S, "of a core")
    for stream in streams:
        if stream.fp is not None:
            stream.fp.raw._sock.shutdown(2)  # type: ignore[attr-defined]
    for thread in threads:
        thread.join()


def _kill(side: Side, record: Recorder) -> None:
    watched = next(slot for slot in range(len(side.running.pids())) if slot != side.leader)
    victim = next(slot for slot in range(5, -1, -1) if slot not in (watched, side.leader))
    stream = side.get("/api/live", watched)
    while not stream.readline().startswith(b"event: status"):
        pass
    began_s = side.kill(victim)
    wanted = f'"slot":"agent-{victim}","state":"down"'.encode()
    while wanted not in stream.readline():
        assert time.monotonic() < began_s + TOLD_TIMEOUT_S, "a SIGKILL was never shown"
    record.add(works.SEEN_KILL, SYSTEM, time.monotonic() - began_s, "s")
    stream.close()


def _listener(spark: "SparkSession", running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """The query never pauses: there are more batches in a second than anybody has notes of."""
    streams = spark._jsparkSession.streams()
    (listener,) = streams.listListeners()
    jvm: Any = spark._jvm
    pids = [jvm.java.lang.ProcessHandle.current().pid(), *running.pids().values()]
    works_of = {False: works.SEEN_BATCH, True: works.SEEN_BATCH_NOTED}
    for turn in range(-1, sizes.noted_turns):  # the first one only warms up
        for noted in works_of if turn % 2 else reversed(works_of):
            streams.removeListener(listener)
            if noted:
                streams.addListener(listener)
            seen: list[Progress] = []
            cost = cost_of(
                lambda noted=noted, seen=seen: seen.extend(_noted(spark, sizes, noted)), pids
            )
            if turn >= 0:
                note = f"{sizes.noted_batches} batches each"
                record.add(works_of[noted], SYSTEM, cost.cpu_ms / len(seen), "ms CPU", note=note)
    streams.removeListener(listener)
    streams.addListener(listener)


def _noted(spark: "SparkSession", sizes: Sizes, noted: bool) -> list[Progress]:
    place = f"diskless:///noted-{noted:d}"
    return _turn(spark, place, warm=0, batches=sizes.noted_batches, plan=SMALL)


def _kills_shown(spark: "SparkSession", running: Cluster, sizes: Sizes, record: Recorder) -> None:
    """Of agents that neither lead nor serve the page, while a stream runs."""
    try:
        driver = start_chromium()
    except NoBrowser as error:
        record.note(f"a SIGKILL as a browser shows it: {error}")
        return
    query = _start(spark, "diskless:///shown", SMALL)
    try:
        for _ in range(sizes.repetitions):
            running.wait_recovered()
            record.add(works.SEEN_KILL_SHOWN, SYSTEM, _shown_s(driver, running), "s")
            if not query.isActive:
                query.awaitTermination()  # raises what it failed with
    finally:
        driver.quit()
        query.stop()


def _shown_s(driver: Any, running: Cluster) -> float:
    status = running.client.status()
    leads = parse_slot(status.leader)
    serves, victim = [slot for slot in range(len(status.agents)) if slot != leads][:2]
    token = load(running.name).keyring.client("bench", writes=False).token
    driver.get("about:blank")  # else the same address with another fragment is the same page
    driver.get(f"{status.agents[serves].http}/#token={token}")
    _await(lambda: f"agent-{victim}" in driver.find_element("id", "hosts").text)
    driver.execute_script(WHEN_DOWN, f"agent-{victim}")
    killed_ms = 1000 * time.time()
    os.kill(status.agents[victim].pid, signal.SIGKILL)
    return (_await(lambda: driver.execute_script("return window.shownMs")) - killed_ms) / 1000


def _await(look: Callable[[], Any]) -> Any:
    """What is there as soon as there is something. Raises TimeoutError."""
    deadline = time.monotonic() + TOLD_TIMEOUT_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the page has not shown it within {TOLD_TIMEOUT_S:g} s")
        time.sleep(SHOWN_POLL_S)
    return found
