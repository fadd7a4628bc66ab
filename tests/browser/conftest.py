"""A real browser, where there is one: Debian's chromium, without a window."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from diskless.bench.browser import NoBrowser, start_chromium
from tests.support import WAIT_S, eventually

EXPECTED = re.compile("net::ERR_|status of 503")


class Browser:
    """One tab."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def text(self, id_: str) -> str:
        """Of an element that may be replaced while it is read."""
        found: str = self.driver.execute_script(
            "return document.getElementById(arguments[0])?.innerText ?? ''", id_
        )
        return found

    def shows(self, id_: str, *words: str, timeout_s: float = WAIT_S) -> None:
        """Returns when an element has all these words."""
        eventually(lambda: all(word in self.text(id_) for word in words), timeout_s)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def asked(self) -> list[str]:
        """The addresses of all requests so far."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def complaints(self) -> list[str]:
        """What the console has, but for requests to agents that are dead, or without a leader."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE" and not EXPECTED.search(entry["message"])
        ]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    try:
        made = start_chromium()
    except NoBrowser as error:
        pytest.skip(str(error))
    yield made
    made.quit()


@pytest.fixture
def browser(driver: Any) -> Browser:
    """A new tab: what an earlier one remembers is not known to it."""
    before = driver.current_window_handle
    driver.switch_to.new_window("tab")
    fresh = driver.current_window_handle
    driver.switch_to.window(before)
    driver.close()
    driver.switch_to.window(fresh)
    driver.get_log("browser")
    driver.get_log("performance")
    driver.set_window_size(1200, 1000)
    return Browser(driver)
