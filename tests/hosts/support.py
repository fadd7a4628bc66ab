"""Hosts for tests: a cluster on network namespaces, a Spark stream on it, and what to break."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from cluster.hosts import Host, Hosts, Plan, configuration
from diskless.client import connect
from diskless.errors import DisklessError
from diskless.model import AgentStatus, ClusterStatus, parse_slot
from diskless.spark.jar import BRIEF_JVM

NAME = "hosts"
DATA_SHARDS, PARITY_SHARDS = 2, 2
HOSTS = 5  # max(m+k, 2k+1)
EXECUTORS = 3
JOB = Path(__file__).with_name("job.py")
SPARK_SUBMIT = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
BATCH_TIMEOUT_S = 240.0
HEAL_TIMEOUT_S = 150.0
"""An agent is started on a host that is back after `repair_delay`, and takes some seconds."""
END_TIMEOUT_S = 90.0
JOB_TIMEOUT_S = 900.0
POLL_S = 0.2

SPARK_OPTIONS = {
    # A host that falls silent is noticed in seconds, not in two minutes.
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "3s",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(BRIEF_JVM),
    "spark.driver.extraJavaOptions": " ".join(BRIEF_JVM),
    # Three executors, on as many hosts: Spark replaces one that is lost on another host.
    "spark.cores.max": str(EXECUTORS),
    "spark.sql.shuffle.partitions": str(EXECUTORS),
    "spark.ui.enabled": "false",
}


class Site:
    """The hosts, and the diskless cluster that spans them."""

    def __init__(
        self,
        directory: Path,
        *,
        hosts: int = HOSTS,
        agents: int = HOSTS,
        data_shards: int = DATA_SHARDS,
        parity_shards: int = PARITY_SHARDS,
    ) -> None:
        self.hosts = Hosts(Plan(hosts=hosts, directory=str(directory)))
        self.directory = directory
        self._agents = agents
        self._data_shards = data_shards
        self._parity_shards = parity_shards
        self._streams = 0

    def up(self) -> None:
        self.hosts.up(
            configuration(
                self._agents,
                data_shards=self._data_shards,
                parity_shards=self._parity_shards,
                memory="64MiB",
                name=NAME,
            )
        )

    def host(self, number: int) -> Host:
        return self.hosts.all[number - 1]

    def kill(self, *numbers: int) -> None:
        """All of them at once, as far as that is possible."""
        for host in self.hosts.pick(numbers):
            assert host.kill() > 0, f"nothing ran on {host.name}"

    def back(self, *numbers: int) -> None:
        self.hosts.back(self.hosts.pick(numbers))

    def run(self, number: int, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.host(number).command(*command),
            check=False,
            capture_output=True,
            text=True,
            timeout=END_TIMEOUT_S,
        )

    def diskless(self, number: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.python(number, "-m", "diskless.cli", "--cluster", NAME, *arguments)

    def python(self, number: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """On a host, with what it needs to speak to Ray there."""
        launch = self.host(number).launch("env")
        exports, _ = launch.communicate(timeout=END_TIMEOUT_S)
        assert launch.returncode == 0, exports
        env = [line.removeprefix("export ") for line in exports.splitlines()]
        return self.run(number, "env", *env, sys.executable, *arguments)

    # The cluster's own view, asked over the bridge.

    def status(self) -> ClusterStatus:
        with connect(NAME, timeout_s=30.0) as client:
            return client.status()

    def agents(self) -> dict[int, AgentStatus]:
        """By the number of the host that an agent is, or was, on."""
        rows = self.status().agents
        return {int(row.host.split("/")[0].removeprefix("dsk-")): row for row in rows}

    def leader(self) -> int:
        """The host of the agent that leads."""
        status = self.status()
        slot = parse_slot(status.leader)
        return next(n for n, row in self.agents().items() if parse_slot(row.slot) == slot)

    def lives(self) -> dict[str, int]:
        """The incarnation of each agent that is up."""
        rows = self.status().agents
        return {row.slot: row.incarnation for row in rows if row.state == "up"}

    def wait(self, what: str, reached: Any, timeout_s: float = HEAL_TIMEOUT_S) -> ClusterStatus:
        """The status that is wanted. The cluster may be silent while a leader is elected."""
        end_s = time.monotonic() + timeout_s
        seen: object = "no answer"
        while time.monotonic() < end_s:
            try:
                status = self.status()
            except DisklessError as error:
                seen = error
            else:
                if reached(status):
                    return status
                seen = {
                    "margin": status.margin,
                    "repair": status.repair,
                    "unhosted": status.unhosted,
                    "agents": [(row.slot, row.state) for row in status.agents],
                }
            time.sleep(POLL_S)
        raise AssertionError(f"waited {timeout_s:g} s for {what} in vain: {seen}")

    def wait_margin(self) -> ClusterStatus:
        wanted = self._parity_shards
        return self.wait(f"margin {wanted}", lambda status: status.margin == wanted)

    def wait_down(self, *numbers: int) -> None:
        names = {self.host(number).name for number in numbers}

        def down(status: ClusterStatus) -> bool:
            rows = [row for row in status.agents if row.host.split("/")[0] in names]
            return len(rows) == len(names) and all(row.state == "down" for row in rows)

        self.wait(f"hosts {numbers} to be down", down)

    # Streams.

    @contextmanager
    def stream(self, number: int, checkpoint: str) -> "Iterator[Stream]":
        """Word count, with its driver on that host and executors on all of them."""
        self._streams += 1
        running = Stream(self, self.host(number), checkpoint, self._streams)
        try:
            yield running
        finally:
            running.end()


class Stream:
    def __init__(self, site: Site, host: Host, checkpoint: str, number: int) -> None:
        self.host = host
        base = site.directory / f"stream-{number}"
        self.said, self.errors = base.with_suffix(".out"), base.with_suffix(".err")
        self._stop = base.with_suffix(".stop")
        properties = site.hosts.head.state / "spark-defaults.conf"
        options = SPARK_OPTIONS | {"spark.driver.host": host.address}
        command = [
            *("env", f"SPARK_LOCAL_IP={host.address}", f"PYSPARK_PYTHON={sys.executable}"),
            *(str(SPARK_SUBMIT), "--properties-file", str(properties)),
            *(word for pair in options.items() for word in ("--conf", "=".join(pair))),
            *(str(JOB), checkpoint, str(self._stop), str(JOB_TIMEOUT_S)),
        ]
        root = str(Path(__file__).parents[2])
        with self.said.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                host.command(*command),
                stdout=out,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": root},
            )

    def lines(self) -> list[dict[str, Any]]:
        """What it said so far; a line that is not complete yet is left for later."""
        whole = self.said.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    @property
    def batches(self) -> list[int]:
        return [line["batch"] for line in self.lines() if "batch" in line]

    @property
    def executors(self) -> set[int]:
        """The hosts that had one when the last batch was committed, without the driver's."""
        last = next(line for line in reversed(self.lines()) if "batch" in line)
        found = {int(address.rpartition(".")[2]) for address in last["executors"]}
        return found - {self.host.number}

    def advance(self, count: int) -> None:
        """Returns when so many more batches are committed."""
        wanted = len(self.batches) + count
        end_s = time.monotonic() + BATCH_TIMEOUT_S
        while len(self.batches) < wanted:
            assert self.process.poll() is None, f"the stream ended: {self._last_words()}"
            assert time.monotonic() < end_s, (
                f"{wanted - len(self.batches)} of {count} batches were not committed in "
                f"{BATCH_TIMEOUT_S:g} s: {self._last_words()}"
            )
            time.sleep(POLL_S)

    def spread_over(self, hosts: int) -> None:
        """Returns when there are executors on so many hosts."""
        end_s = time.monotonic() + BATCH_TIMEOUT_S
        while True:
            self.advance(1)
            if len(self.executors) >= hosts:
                return
            assert time.monotonic() < end_s, f"executors are only on {self.executors}"

    def finish(self) -> dict[str, Any]:
        """Stops the query, and gives its verdict: see job.py."""
        self._stop.touch()
        try:
            code = self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end: {self._last_words()}") from None
        assert code == 0, self._last_words()
        return self.lines()[-1]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(END_TIMEOUT_S)

    def _last_words(self) -> str:
        return (self.said.read_text() + self.errors.read_text())[-2000:]
