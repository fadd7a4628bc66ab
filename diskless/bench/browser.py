"""A real browser without a window, where there is one: Debian's chromium, driven by selenium."""

import shutil
import sys
from pathlib import Path
from typing import Any

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
MISSING = (
    "no browser: make tools, or apt-get install chromium chromium-driver; pip install selenium"
)


class NoBrowser(Exception):
    """There is none, or nothing to drive it with."""


def find_tool(name: str) -> str | None:
    """A program that `make tools` has fetched, or that is installed."""
    fetched = Path(sys.prefix) / "tools/bin" / name
    return str(fetched) if fetched.exists() else shutil.which(name)


def start_chromium() -> Any:
    """A driver, which the caller quits. Raises NoBrowser."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        raise NoBrowser(MISSING) from None
    driver, program = find_tool("chromedriver"), find_tool("chromium")
    if driver is None or program is None:
        raise NoBrowser(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))
