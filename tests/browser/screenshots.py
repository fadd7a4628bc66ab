"""Pictures of the page for the documentation: `make screenshots`."""

import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image  # matplotlib brings it

import diskless
from diskless.bench.browser import start_chromium
from diskless.config import METRICS_PORT, MIB
from tests.browser.conftest import Browser
from tests.spark.streams import QUERY_S_MAX, Numbers, OtherJvm, Said
from tests.support import STRIPED, content, eventually, kill, leader

DOCS = Path(diskless.__file__).parents[1] / "docs"
WORK_BATCHES = 12
COLOURS = 64


def main() -> None:
    driver: Any = start_chromium()
    browser = Browser(driver)
    with (
        tempfile.TemporaryDirectory() as tier,
        diskless.local_cluster(
            tuning=STRIPED, metrics_port=METRICS_PORT, tier=f"file://{tier}/tier"
        ) as cluster,
        OtherJvm(cluster.uri, master="local[2]") as jvm,
    ):
        with cluster.connect() as client:
            client.write("/models/1", content(8 * MIB))
        jvm.start("q", f"{cluster.uri}checkpoints/q1", numbers=Numbers(rows=2000, keys=500))
        door = cluster.nodes[5].doors.http
        assert door is not None
        browser.open(f"{door.address}/#token={cluster.token('/', writes=False)}")
        await_batches(jvm, WORK_BATCHES)
        victim = next(slot for slot in range(5) if slot != leader(cluster).slot)
        kill(cluster, victim)
        await_batches(jvm, WORK_BATCHES // 2)
        browser.shows("top", "At risk")
        browser.shows("checkpoints", "walCommit")
        driver.find_element("css selector", "#checkpoints summary").click()
        browser.shows("checkpoints", "addBatch")
        take(driver, "dashboard.png", width=1200, height=1720, theme="light")
        take(driver, "dashboard-phone.png", width=390, height=1100, theme="dark")
        jvm.stop("q")
    driver.quit()


def take(driver: Any, name: str, *, width: int, height: int, theme: str) -> None:
    """In few colours, which the page has: half of the bytes."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.execute_script("scrollTo(0, 0)")
    picture = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(DOCS / name, optimize=True)


def await_batches(jvm: OtherJvm, batches: int) -> None:
    """So many more of a stream that goes on."""

    def done() -> int:
        said = Said()
        jvm.report("q", said)
        return len(said.batches)

    wanted = done() + batches
    eventually(lambda: done() >= wanted, QUERY_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
