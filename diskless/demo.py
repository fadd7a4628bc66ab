"""`make demo`: a cluster of six agents loses two of them, and every byte is still there.

Starts its own Ray under a throw-away home, so it touches no cluster of the user's, and
ends everything it started, also when it fails or is interrupted. Exits with 1 if a single
byte differed.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from diskless.client import Client, connect
from diskless.client.descriptor import HOME_VARIABLE
from diskless.config import KIB, MIB, ClusterSettings, format_bytes
from diskless.errors import DisklessError
from diskless.model import slot_name

SETTINGS = ClusterSettings(name="demo", agents=6, data_shards=4, parity_shards=2,
                           memory_bytes=256 * MIB)  # fmt: skip
VICTIMS = (0, 5)
FILES = {0: 10, 40: 100, 700: 80, 20 * KIB: 80, 300 * KIB: 24, 3 * MIB + 17: 6}
"""How many files of which size."""
SEED = 20171
DOWN_TIMEOUT_S = 10.0
POLL_S = 0.05

Contents = dict[str, bytes]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with _throw_away_home():
            return _demo()
    except KeyboardInterrupt:
        print("\ninterrupted; everything has been stopped")
        return 130
    except DisklessError as error:
        print(f"demo: {error.reason}: {error}", file=sys.stderr)
        return error.exit_code


def _demo() -> int:
    from diskless.launch import ray_cluster

    _start()  # If it fails, it has cleaned up.
    try:
        with connect(SETTINGS.name) as client:
            contents = _contents(random.Random(SEED))
            _store(client, contents)
            _kill(client)
            wrong = _read_back(client, contents)
    finally:
        with _step("stop everything") as note:
            ray_cluster.down(SETTINGS.name, discard=True)
            note("no process, socket or file is left")
    if wrong:
        print(f"\nWRONG: {len(wrong)} files differ, the first is {wrong[0]}")
        return 1
    print(
        "\nTwo of six agents are gone, the leader among them, "
        f"and all {len(contents)} files are intact."
    )
    return 0


def _start() -> None:
    from diskless.launch import ray_cluster

    with _step("start six agents, 4+2") as note:
        started = ray_cluster.up(SETTINGS)
        note(f"{started.agents_up} serve")
    for line in started.advice:
        print(f"    {line}")


def _store(client: Client, contents: Contents) -> None:
    with _step(f"store {len(contents)} files of 0 B to 3 MiB") as note:
        for path, data in contents.items():
            client.write(path, data)
        status = client.status()
        note(
            f"{format_bytes(status['bytes_logical'])}, as {format_bytes(status['bytes_stored'])} "
            f"in {status['stripes']['total']} stripes, margin {status['margin']}"
        )


def _kill(client: Client) -> None:
    from diskless.launch import ray_cluster

    with _step(f"kill {' and '.join(map(slot_name, VICTIMS))} for good") as note:
        victims = ray_cluster.kill(SETTINGS.name, VICTIMS, stay_dead=True)
        status = _wait_noticed(client)
        pids = ", ".join(str(victim.pid) for victim in victims)
        note(f"SIGKILL to {pids}; margin {status['margin']}")


def _wait_noticed(client: Client) -> dict[str, Any]:
    end_s = time.monotonic() + DOWN_TIMEOUT_S
    while True:
        status = client.status()
        down = sum(agent["state"] == "down" for agent in status["agents"])
        if down == len(VICTIMS) or time.monotonic() > end_s:
            return status
        time.sleep(POLL_S)


def _read_back(client: Client, contents: Contents) -> list[str]:
    """The paths whose bytes are not what was stored."""
    with _step(f"read all {len(contents)} files back") as note:
        wrong = [path for path, data in contents.items() if client.read(path) != data]
        note("byte for byte what was stored" if not wrong else f"{len(wrong)} DIFFER")
    return wrong


def _contents(rng: random.Random) -> Contents:
    sizes = [size for size, count in FILES.items() for _ in range(count)]
    rng.shuffle(sizes)
    return {
        f"/demo/{number % 10}/file-{number:03}": rng.randbytes(size)
        for number, size in enumerate(sizes)
    }


@contextmanager
def _step(what: str) -> Iterator[Callable[[str], None]]:
    """One line: what is done, then how it went and how long it took."""
    print(f"  {what:<42}", end="", flush=True)
    notes: list[str] = []
    began_s = time.monotonic()
    try:
        yield notes.append
    except BaseException:
        print("failed")
        raise
    print(f"{time.monotonic() - began_s:6.1f} s  {'; '.join(notes)}")


@contextmanager
def _throw_away_home() -> Iterator[None]:
    home = tempfile.mkdtemp(prefix="diskless-demo-")
    os.environ[HOME_VARIABLE] = home
    try:
        yield
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
