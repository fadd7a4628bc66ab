"""Installs this project into a virtual environment, and shows how far it is.

    python install.py VENV_PYTHON

Called by the Makefile before anything of the project can be imported, so it uses nothing but the
standard library. On a terminal one line says what pip does now; elsewhere there is a line every
ten seconds. If pip fails, all that it said is shown, and its exit status is ours.
"""

import os
import subprocess
import sys
import threading
import time

WIDTH = 76
EVERY_S = 10.0
TERMINAL_S = 0.5
WORDS = {
    "Collecting": "resolving",
    "Downloading": "downloading",
    "Using": "resolving",
    "Processing": "unpacking",
    "Building": "building",
    "Preparing": "building",
    "Installing": "installing",
    "Successfully": "done",
}


def describe(line: str) -> str:
    """What pip does, in a few words; "" for a line that says nothing new."""
    words = line.split()
    if not words or words[0] not in WORDS:
        return ""
    if line.startswith("Installing collected packages:"):
        return f"installing {line.count(',') + 1} packages"
    if words[0] in ("Building", "Preparing", "Installing", "Successfully"):
        return WORDS[words[0]]
    if len(words) < 2:
        return ""
    named = words[1].rpartition("/")[2].split("-")[0].split("=")[0].split(">")[0].split("<")[0]
    return f"{WORDS[words[0]]} {named}"


class Pip:
    """pip at work, and what it does now."""

    def __init__(self, command: list[str]) -> None:
        # Unbuffered: a pipe would get its lines kilobytes at a time.
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,  # whoever is asked for a password sees no question here
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        self.said: list[str] = []
        self.now = "starting"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            self.now = describe(line.strip()) or self.now

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended."""
        self._reader.join(timeout_s)
        return not self._reader.is_alive()

    def status(self) -> int:
        return self._process.wait()


def main(python: str) -> int:
    began_s = time.monotonic()
    terminal = sys.stdout.isatty()
    print("Installing into .venv: one to two minutes the first time.", flush=True)
    pip = Pip([python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
               "--progress-bar", "off", "--editable", ".[dev]"])  # fmt: skip
    while not pip.wait(TERMINAL_S if terminal else EVERY_S):
        text = f"  {time.monotonic() - began_s:4.0f} s  {pip.now}"[:WIDTH]
        print(f"\r{text:<{WIDTH}}" if terminal else f"{text}\n", end="", flush=True)
    if terminal:
        print("\r" + " " * WIDTH, end="\r")
    if status := pip.status():
        sys.stdout.writelines(pip.said)
        return status
    print(f"Installed in {time.monotonic() - began_s:.0f} s.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
