"""A client in a process of its own that makes small commits and says what each took: `Committing`.

What compares rates uses it: a process that has run two thousand tests is slower, and not evenly.
As a program it is that client: each line says for how long, and is answered with the times.
"""

import json
import subprocess
import sys
import time
from typing import Self

from diskless.client import connect


class Committing:
    """The parent's side. Use it in a `with` block."""

    def __init__(self, uri: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.committing", uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def times_ms(self, for_s: float) -> list[float]:
        """What each of the small commits of that time takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{for_s}\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found


def main(uri: str) -> None:
    with connect(uri, timeout_s=60.0) as client:
        for line in sys.stdin:
            took: list[float] = []
            end_s = time.monotonic() + float(line)
            while time.monotonic() < end_s:
                began = time.perf_counter()
                client.write(f"/small/{len(took)}", b"1", overwrite=True)
                took.append(1000 * (time.perf_counter() - began))
            print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
