"""Debian's Prometheus and promtool, for tests: a server that scrapes a cluster, and the rules."""

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import diskless
from diskless.bench.browser import find_tool
from diskless.launch.local import LocalCluster
from tests.support import eventually

RULES = Path(diskless.__file__).parents[1] / "cluster/alerts.yml"
READY_S = 60.0
FIRING_S = 60.0

PROMETHEUS, PROMTOOL = find_tool("prometheus"), find_tool("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: make tools (or apt-get install prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None,
    reason="prometheus is not installed: make tools (or apt-get install prometheus)",
)


def promtool(*arguments: object, given: str = "") -> str:
    """Raises AssertionError with what it says if it is not content."""
    done = subprocess.run(
        [str(PROMTOOL), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


class Prometheus:
    """One that scrapes a cluster every second. Alarms need not wait: `for` is taken out."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def firing(self) -> set[str]:
        found = self.ask("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    def up(self) -> int:
        return sum(one["health"] == "up" for one in self.ask("/api/v1/targets")["activeTargets"])

    def fires(self, *names: str) -> None:
        """Returns when all of these are told."""
        eventually(lambda: self.firing() >= set(names), FIRING_S)

    def ends(self, *names: str) -> None:
        """Returns when none of these is told any more."""
        eventually(lambda: not self.firing() & set(names), FIRING_S)


@contextmanager
def prometheus(cluster: LocalCluster, directory: Path) -> Iterator[Prometheus]:
    token = directory / "token"
    token.write_text(cluster.token("/nothing", name="prometheus", writes=False))
    rules = directory / "alerts.yml"
    text = re.sub(r"^ +for: \w+\n", "", RULES.read_text(), flags=re.MULTILINE)
    rules.write_text(text.replace("[10m]", "[5s]").replace("offset 10m", "offset 5s"))
    config = directory / "prometheus.yml"
    config.write_text(json.dumps(_config(cluster, str(token), str(rules))))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(address)
        eventually(lambda: process.poll() is not None or server.is_ready(), READY_S)
        assert process.poll() is None, (directory / "log").read_text()
        yield server
    finally:
        process.kill()
        process.wait()


def _config(cluster: LocalCluster, token: str, rules: str) -> dict[str, Any]:
    targets = [
        node.doors.http.address.partition("//")[2]
        for node in cluster.nodes.values()
        if node.doors.http
    ]
    return {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [rules],
        "scrape_configs": [
            {
                "job_name": "diskless",
                "scrape_timeout": "500ms",
                "authorization": {"credentials_file": token},
                "static_configs": [{"targets": targets}],
            }
        ],
    }
