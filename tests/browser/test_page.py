"""The page, in a real browser, over a real cluster."""

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from diskless.config import METRICS_PORT, MIB
from diskless.launch.local import LocalCluster
from diskless.model import DrillStatus
from diskless.notes import BatchNote
from tests.browser.conftest import Browser
from tests.cluster.test_eviction import evict
from tests.cluster.test_page import watching
from tests.conftest import Connect, StartCluster
from tests.support import (
    STRIPED,
    content,
    eventually,
    is_whole,
    kill,
    leader,
    on_loop,
    start_cluster,
)
from tests.unit.test_queries import checkpoint, plan

ENTER = "\ue007"
"""A key, as browsers are told of it."""
TAB_DOWN = {"type": "rawKeyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
"""Of no element: the page may replace the one that has the focus."""

pytestmark = pytest.mark.timeout(180)


SETTINGS: dict[str, Any] = {
    "agents": 6,
    "data_shards": 4,
    "parity_shards": 2,
    "memory": "64MiB",
    "tuning": STRIPED,
    "metrics_port": METRICS_PORT,
}


@pytest.fixture
def cluster(start: StartCluster, tmp_path: Path) -> LocalCluster:
    return start(tier=f"file://{tmp_path}/tier", **SETTINGS)


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """For tests that kill nobody."""
    tier = tmp_path_factory.mktemp("tier") / "tier"
    with start_cluster(tier=f"file://{tier}", **SETTINGS) as cluster:
        yield cluster


def door_of(cluster: LocalCluster, slot: int) -> str:
    door = cluster.nodes[slot].doors.http
    assert door is not None
    return door.address


def address(cluster: LocalCluster, slot: int, token: str = "") -> str:
    return (
        f"{door_of(cluster, slot)}/#token={token or cluster.token('/', name='page', writes=False)}"
    )


def follower(cluster: LocalCluster) -> int:
    return next(slot for slot in cluster.nodes if slot != leader(cluster).slot)


def test_a_loss_is_seen_in_a_moment_and_so_is_its_end(
    cluster: LocalCluster, connect: Connect, browser: Browser
) -> None:
    client = connect(cluster)
    client.write("/a", content(4 * MIB))
    browser.open(address(cluster, follower(cluster)))
    browser.shows("top", "Safe", "Margin 2 of 2", "the tier has it all")
    gone = follower(cluster)
    if gone == urlslot(browser, cluster):
        gone = next(slot for slot in cluster.nodes if slot not in (gone, leader(cluster).slot))
    kill(cluster, gone)
    browser.shows(f"agent-{gone}", "down")
    browser.shows("top", "At risk", "Margin 1 of 2", f"agent-{gone} is down")
    assert f"diskless logs agent-{gone}" in browser.text("todo")
    for theme in ("dark", "light"):
        wear(browser, theme)
        assert browser.run(CONTRAST) == []
    cluster.revive(gone)
    eventually(lambda: is_whole(client, 6))
    browser.shows("top", "Safe", "Margin 2 of 2")
    browser.shows("marks", f"agent-{gone} down", f"agent-{gone} up")
    assert browser.complaints() == []


def urlslot(browser: Browser, cluster: LocalCluster) -> int:
    port = urlsplit(browser.driver.current_url).port
    found = [
        slot
        for slot, node in cluster.nodes.items()
        if node.doors.http is not None and urlsplit(node.doors.http.address).port == port
    ]
    return found[0]


def test_a_new_leader_is_marked(cluster: LocalCluster, browser: Browser) -> None:
    before = leader(cluster).slot
    browser.open(address(cluster, 5))
    browser.shows(f"agent-{before}", "leads")
    kill(cluster, before)
    after = leader(cluster).slot
    browser.shows(f"agent-{after}", "leads")
    browser.shows("marks", f"agent-{after} leads")


def test_the_page_of_a_dead_agent_moves_to_another(cluster: LocalCluster, browser: Browser) -> None:
    """k agents die at once, of which one served the page and another led."""
    browser.open(address(cluster, 5))
    browser.shows("teller", "agent-5")
    cluster.kill(5, leader(cluster).slot)
    eventually(lambda: browser.text("teller") not in ("agent-5", "nobody yet", ""), 60)
    browser.shows("top", "At risk")
    assert "token" not in browser.driver.current_url


def test_a_stream_that_was_cut_is_opened_again_at_the_same_agent(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    browser.open(address(peaceful, 5))
    browser.shows("top", "Safe")
    door = peaceful.nodes[5].doors.http
    assert door is not None

    def cut() -> int:
        open_ = [one for one in door._server.connections if one.transport is not None]
        for one in open_:
            one.transport.abort()
        return len(open_)

    browser.asked()
    for _ in range(3):  # what failed before it went on does not count
        assert on_loop(peaceful, cut) >= 1
        asked: list[str] = []

        def again(asked: list[str] = asked) -> bool:
            asked += browser.asked()
            return any("/api/live" in url for url in asked)

        eventually(again)
        browser.shows("top", "Safe")
        browser.shows("teller", "agent-5")
        assert not [url for url in asked if not url.startswith(door.address)]
    client = connect(peaceful)
    client.policies.set("/cut", "quota", "1KiB")
    client.write("/cut/a", content(1024))
    browser.shows("todo", "The quota of /cut is used up")
    client.delete("/cut/a")
    assert browser.complaints() == []


def test_a_page_that_cannot_read_its_stream_leaves_none_open(
    peaceful: LocalCluster, browser: Browser
) -> None:
    browser.open(address(peaceful, 4))
    browser.shows("top", "Safe")
    browser.asked()
    browser.run("JSON.parse = () => { throw new Error('of another version'); }")
    opened = 0

    def tried() -> bool:
        nonlocal opened
        opened += sum("/api/live" in url for url in browser.asked())
        return opened >= 12

    eventually(tried)
    eventually(lambda: watching(peaceful, 4) <= 6)


def test_a_namespace_that_stopped_says_what_it_needs(
    cluster: LocalCluster, browser: Browser
) -> None:
    browser.open(address(cluster, 5))
    browser.shows("top", "Safe")
    cluster.kill(0, 1, 2)
    browser.shows("top", "Nothing is served", "diskless logs", timeout_s=60)


def test_files_snapshots_queries_and_events_are_shown(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    client = connect(peaceful)
    browser.open(address(peaceful, 1))
    browser.shows("checkpoints", "No checkpoint is here yet")
    client.write("/models/big", content(2 * MIB))
    for batch in range(3):
        client.write(f"/checkpoints/q1/offsets/{batch}", b"1")
        client.write(f"/checkpoints/q1/commits/{batch}", b"1")
    client.write("/checkpoints/q1/offsets/3", b"1")
    client.snapshot("/checkpoints/q1", "before")
    browser.shows("checkpoints", "/checkpoints/q1 batch 2", "batch 3 runs")
    browser.driver.find_element("tag name", "summary").click()
    browser.shows("checkpoints", "diskless snapshot ls /checkpoints/q1")
    box = browser.driver.find_element("id", "path")
    box.clear()
    box.send_keys("/checkpoints/q1", ENTER)  # by keyboard
    browser.shows("files", "durability=async", "before", "commits/", "offsets/")
    box.clear()
    box.send_keys("/models", ENTER)
    browser.shows("entries", "big")
    browser.driver.find_element("link text", "big").click()
    browser.shows("about", "/models/big", "2.0 MiB", "agent-")
    box.clear()
    box.send_keys("/none", ENTER)
    browser.shows("about", "NotFound")
    browser.shows("log", "put", "/models/big")
    browser.driver.find_element("id", "filter").send_keys("snapshot")
    browser.shows("log", "snapshot before")
    assert "/models/big" not in browser.text("log")
    client.write("/checkpoints/q1/metadata", b"{}")

    def shows_lease() -> bool:
        client.write("/checkpoints/q1/offsets/3", b"1", overwrite=True)  # else it would end
        said = f"{client._caller.application} has its lease since"
        return said in browser.text("checkpoints")

    eventually(shows_lease)
    assert browser.complaints() == [] or all("404" in said for said in browser.complaints())


@pytest.mark.parametrize(("theme", "width"), [("light", 1200), ("dark", 360)])
def test_an_opened_query_shows_which_batches_have_a_way_back(
    peaceful: LocalCluster, connect: Connect, browser: Browser, theme: str, width: int
) -> None:
    client = connect(peaceful)
    top = f"/ways/{theme}"
    files = {path: data for path, data in checkpoint(20).items() if path != "state/0/1/6.delta"}
    client.write_many({f"{top}/{path}": data for path, data in files.items()})
    client.write_many({f"{top}-odd/offsets/0": b"?", f"{top}-odd/commits/0": b"?"})
    wear(browser, theme)
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.open(address(peaceful, 1))
    for path in (top, f"{top}-odd"):
        row = f"details[data-path='{path}'] summary"
        eventually(
            lambda row=row: browser.run("return !!document.querySelector(arguments[0])", row)
        )
        browser.run("document.querySelector(arguments[0]).click()", row)
    browser.shows("checkpoints", "Ways back", "no: the state of batch 6 is not complete any more")
    browser.shows("checkpoints", "stateStoreSave × 2 in hdfs", '{"logOffset":19}', "yes")
    browser.shows("checkpoints", f"diskless query rollback {top} --batch 18 --dry-run")
    browser.shows("checkpoints", "no: offsets/0 does not begin with the version of its format")
    assert browser.run(CONTRAST) == []
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    ways = f'document.querySelector(\'details[data-path="{top}"] [aria-label="ways back"]\')'
    browser.run(f"{ways}.scrollTop = 40")
    client.write(f"{top}/offsets/20", plan(20))
    browser.shows(
        "checkpoints", "batch 20 runs", '{"logOffset":20}', "no: batch 20 was not committed"
    )
    assert browser.run(f"return {ways}.scrollTop") == 40, "who reads it is not disturbed"
    assert browser.complaints() == []


def test_drills_quotas_and_what_is_in_the_tier_alone_are_shown(
    cluster: LocalCluster, connect: Connect, browser: Browser
) -> None:
    client = connect(cluster)
    browser.open(address(cluster, 1))
    browser.shows("top", "Safe", "No drill has tried a restore yet")
    client.write("/big", content(2 * MIB))
    client.tier.flush()
    evict(cluster, "/big")
    browser.shows("cache", "1 files and 2.0 MiB were evicted and are in the tier alone")
    client.tier.drilled(DrillStatus(sound=False, problem="/big is short", problems=1))
    browser.shows("top", "At risk", "The last drill could not restore the tier: /big is short")
    client.tier.drilled(DrillStatus(sound=True, serves_s=1.5))
    browser.shows("top", "Safe", "sound, a restore would serve after 1.5 s")
    client.policies.set("/q", "quota", "1MiB")
    client.write("/q/a", content(MIB))
    browser.shows("todo", "The quota of /q is used up", "diskless du /q")
    client.delete("/q/a")
    eventually(lambda: "quota" not in browser.text("todo"))
    assert client.read("/big") == content(2 * MIB)
    browser.shows("cache", "of reads found their bytes in memory, others waited")
    assert browser.complaints() == []


def test_the_hour_is_plotted(peaceful: LocalCluster, connect: Connect, browser: Browser) -> None:
    browser.open(address(peaceful, 0))
    client = connect(peaceful)
    deadline = time.monotonic() + 60
    plotted = "return document.querySelectorAll('#plots path[d^=M]').length"
    commits = re.compile(r"Commits: ([1-9]|0\.[0-9]*[1-9])")
    while browser.run(plotted) < 9 or not commits.search(browser.text("plots")):
        client.write("/a", b"1", overwrite=True)
        assert time.monotonic() < deadline
    names = browser.run(
        "return [...document.querySelectorAll('#plots svg')].map(one => one.ariaLabel)"
    )
    assert len(names) == 7
    assert all("in the last hour, now" in name for name in names)


def test_a_token_sees_its_own_paths_and_none_is_asked_for(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    client = connect(peaceful)
    client.write("/p/q1/a", b"1")
    client.write("/secret/b", b"1")
    browser.open(door_of(peaceful, 0))
    browser.shows("login", "A token is needed")
    assert peaceful.settings.name not in browser.text("top")
    box = browser.driver.find_element("id", "token")
    box.send_keys("d1.nonsense", ENTER)
    browser.shows("refused", "not valid here")
    box.clear()
    box.send_keys(peaceful.token("/p/q1", writes=False), ENTER)
    browser.shows("top", "Safe")
    browser.shows("entries", "p/")
    assert "secret" not in browser.text("entries")
    browser.shows("log", "/p/q1/a")
    assert "secret" not in browser.text("log")
    client.revoke_token("client")
    browser.shows("refused", "not valid here", timeout_s=30)


def test_a_late_refusal_of_one_token_says_nothing_of_the_next(
    peaceful: LocalCluster, browser: Browser
) -> None:
    browser.open(door_of(peaceful, 3))
    browser.shows("login", "A token is needed")
    browser.run(HOLD_BACK, "api/path", 1)
    box = browser.driver.find_element("id", "token")
    box.send_keys("d1.nonsense", ENTER)
    browser.shows("refused", "not valid here")
    box.clear()
    box.send_keys(peaceful.token("/", name="late", writes=False), ENTER)
    browser.shows("top", "Safe")
    browser.driver.execute_async_script(LET_GO)
    browser.shows("about", "directories", timeout_s=20)
    assert browser.run("return document.getElementById('login').hidden")
    assert browser.run("return sessionStorage.getItem('diskless-token')")


def test_it_asks_agents_and_nobody_else_and_is_small(
    peaceful: LocalCluster, browser: Browser
) -> None:
    browser.open(address(peaceful, 0))
    browser.shows("top", "Safe")
    browser.shows("checkpoints", "heckpoint")
    hosts = {urlsplit(url).hostname for url in browser.asked() if url.startswith("http")}
    assert hosts == {"127.0.0.1"}
    size = browser.run(
        "return performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0)"
    )
    assert 10_000 < size < 300_000
    assert browser.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_readable_in_each_theme(
    peaceful: LocalCluster, connect: Connect, browser: Browser, theme: str
) -> None:
    connect(peaceful).write(f"/themes/{theme}", b"1")
    wear(browser, theme)
    browser.open(door_of(peaceful, 0))
    browser.shows("login", "A token is needed")
    assert browser.run(CONTRAST) == []
    browser.open(address(peaceful, 0))
    browser.shows("top", "Safe")
    browser.shows("log", "put")
    assert browser.run(CONTRAST) == []


def wear(browser: Browser, theme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (c) => c.slice(0, 3).map((v) => v / 255)
  .map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
const behind = (node) => { for (; node; node = node.parentElement) {
  const c = rgb(getComputedStyle(node).backgroundColor); if ((c[3] ?? 1) > 0) return c; }
  return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255]; };
const low = [];
for (const node of document.querySelectorAll("body *")) {
  if (![...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())) continue;
  if (!node.getClientRects().length || node.closest("svg, noscript")) continue;
  const a = light(rgb(getComputedStyle(node).color)), b = light(behind(node));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) low.push(`${node.tagName} ${node.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
}
return low;
"""


def test_it_fits_on_a_phone_and_controls_have_names(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    client = connect(peaceful)
    client.write("/" + "long-name-" * 20, b"1")
    client.write_many({"/phone/q/offsets/0": b"1", "/phone/q/commits/0": b"1"})
    client.snapshot("/phone/q", "one")
    note = BatchNote(0, 1, trigger_ms=412, wal_commit_ms=12, state_rows=1_234_567)
    client.note_batches("/phone/q", "id", [note])
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.open(address(peaceful, 0))
        browser.shows("top", "Safe")
        browser.shows("entries", "long-name")
        browser.shows("events", "put")
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 360
        row = "details[data-path='/phone/q']"
        eventually(lambda: browser.run("return !!document.querySelector(arguments[0])", row))
        assert "took 412 ms (walCommit 12), 0 rows" in browser.run(
            "return document.querySelector(arguments[0]).innerText", row
        )
        browser.run("document.querySelector(arguments[0] + ' summary').click()", row)
        browser.shows("checkpoints", "snapshot", "one")
        tall = browser.run(
            "return Math.max(...[...document.querySelectorAll('#checkpoints tr')]"
            ".map(one => one.getBoundingClientRect().height))"
        )
        assert tall < 60, "a line, or two"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    nameless = browser.run(
        "return [...document.querySelectorAll('button, input, a')].filter(one => "
        "!(one.innerText || one.ariaLabel || one.labels?.length)).map(one => one.outerHTML)"
    )
    assert nameless == []


CONTROLS = {
    "nav a": 5,
    "#todo button": 0,
    "summary": 1,
    "details button": 2,
    "#go input": 1,
    "#go button": 1,
    "#about button": 0,
    "#entries a": 1,
    "#entries button": 0,
    "#find input": 1,
    ".scroll": 1,
}
"""Whatever can be pressed or typed into, and how many of each there are at least."""
PRESSABLE = "a, button, input, select, textarea, summary, [tabindex]"


def test_every_link_and_control_does_what_it_says(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    client = connect(peaceful)
    client.write("/links/a/b", b"1")
    client.write_many({"/links/q/offsets/0": b"1", "/links/q/commits/0": b"1"})
    browser.open(address(peaceful, 2))
    browser.shows("checkpoints", "/links/q")
    browser.shows("log", "/links/a/b")
    for link in browser.driver.find_elements("css selector", "nav a"):
        link.click()
        to = urlsplit(link.get_attribute("href")).fragment
        eventually(lambda to=to: browser.run(IS_AT, to))
    row = browser.driver.find_element("css selector", "[data-path='/links/q'] summary")
    row.send_keys(ENTER)
    browser.shows("checkpoints", "diskless query show /links/q")
    follow = browser.driver.find_element
    follow("link text", "links/").click()
    browser.shows("entries", "..", "a/", "q/")
    follow("link text", "a/").send_keys(ENTER)
    eventually(lambda: browser.run("return document.getElementById('path').value") == "/links/a")
    browser.shows("entries", "b")
    follow("link text", "b").click()
    browser.shows("about", "diskless get /links/a/b .")
    copies(browser, "#about button", "diskless get /links/a/b .")
    copies(browser, "button[aria-label*='query show /links/q']", "diskless query show /links/q")
    box = follow("id", "path")
    box.clear()
    box.send_keys("/links/a")
    follow("css selector", "#go button").click()
    browser.shows("entries", "..")
    follow("link text", "..").click()
    browser.shows("entries", "q/")
    counts = browser.run(
        "return arguments[0].map(one => document.querySelectorAll(one).length)", [*CONTROLS]
    )
    for (name, least), found in zip(CONTROLS.items(), counts, strict=True):
        assert found >= least, name
    unknown = browser.run(
        "return [...document.querySelectorAll(arguments[0])].filter(one => one.getClientRects()"
        ".length && !one.matches(arguments[1])).map(one => one.outerHTML)",
        PRESSABLE,
        ", ".join(CONTROLS),
    )
    assert unknown == [], "a control that no test presses"
    reached = set()
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(60):
        browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", TAB_DOWN)  # wherever the focus is
        reached |= set(
            browser.run(
                "return arguments[0].filter(one => document.activeElement.matches(one))",
                [*CONTROLS],
            )
        )
    assert {"nav a", "summary", "details button", "#go input", "#go button"} <= reached
    assert {"#entries a", "#find input", ".scroll"} <= reached
    assert browser.complaints() == []


def test_a_name_is_text_and_a_command_means_it(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    """Whoever may write chooses names; whoever looks copies commands into a shell."""
    name = "<img src=x onerror=alert(1)> it's; $(touch x)"
    top = f"/odd/{name}"
    client = connect(peaceful)
    files = {f"{top}/{path}": data for path, data in checkpoint(3).items()}
    client.write_many(files | {f"{top}/a\x03\nb": b"1"})
    client.snapshot(top, name.replace("/", ""))
    browser.open(address(peaceful, 1))
    browser.shows("checkpoints", top)
    browser.run(
        "[...document.querySelectorAll('#checkpoints details')]"
        ".find(one => one.dataset.path == arguments[0]).querySelector('summary').click()",
        top,
    )
    told = "return [...document.querySelectorAll('code')].map(one => one.textContent)"
    eventually(lambda: len([one for one in browser.run(told) if " query " in one]) == 2)
    for command in browser.run(told):
        if " query " in command or " ls " in command:
            assert shlex.split(command)[3] == top
    box = browser.driver.find_element("id", "path")
    box.clear()
    box.send_keys(top, ENTER)
    browser.shows("entries", "metadata")
    browser.run("[...document.querySelectorAll('#entries a')].find(a => a.text[0] == 'a').click()")
    browser.shows("about", "diskless get")
    (command,) = [one for one in browser.run(told) if one.startswith("diskless get")]
    assert shlex.split(command) == ["diskless", "get", f"{top}/a??b", "."]
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    assert browser.complaints() == []


def test_of_several_paths_that_were_asked_for_the_last_is_shown(
    peaceful: LocalCluster, connect: Connect, browser: Browser
) -> None:
    connect(peaceful).write_many({"/late/a": b"1", "/last/b": b"1"})
    browser.open(address(peaceful, 1))
    browser.shows("entries", "late/", "last/")
    browser.run(HOLD_BACK, "late", 2)
    box = browser.driver.find_element("id", "path")
    for path in ("/late", "/none-late", "/last"):
        box.clear()
        box.send_keys(path, ENTER)
    browser.shows("about", "/last")
    browser.shows("entries", "..", "b")
    browser.driver.execute_async_script(LET_GO)
    assert "/last" in browser.text("about")
    assert "b" in browser.text("entries")
    assert browser.run("return document.getElementById('path').value") == "/last"


HOLD_BACK = """
const [word, count] = arguments, get = globalThis.fetch, held = globalThis.held = [];
globalThis.fetch = async (url, options) => {
  if (String(url).includes(word) && held.length < count) await new Promise((go) => held.push(go));
  return get(url, options);
};
"""
LET_GO = """
const done = arguments[0];
held.forEach((go) => go());
const asked = async () => { for (let n = 0; n < 5; n++) await (await fetch("api/list")).text(); };
asked().then(done);
"""
"""Answers that were held back come before some that are asked for after them."""

IS_AT = """
const top = document.getElementById(arguments[0]).getBoundingClientRect().top;
return Math.abs(top) < 60 || innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
"""
"""Whether a section is at the top, or the page at its end."""


def copies(browser: Browser, selector: str, command: str) -> None:
    """A button puts the command beside it into the clipboard; where it may not, it marks it."""
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    button = browser.driver.find_element("css selector", selector)
    assert button.accessible_name == f"copy {command}"
    button.click()
    eventually(lambda: button.text == "copied")
    assert browser.run("return navigator.clipboard.readText()") == command
    browser.run("navigator.clipboard.writeText = async () => { throw new Error('denied'); }")
    button.click()
    eventually(lambda: browser.run("return getSelection().toString()") == command)
    browser.run("delete navigator.clipboard.writeText")
