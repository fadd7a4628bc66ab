"""What the same work costs in CPU with the code of another tree and with this one, in turns.

    git worktree add --detach ../before COMMIT && (cd ../before && python proto/build.py)
    python -m diskless.bench.against ../before

For each tree a process with six agents and a client in it, without Ray or TLS: all that the work
costs is that process's CPU. In every round both are new, because two processes of the same code
differ by some percent. Figures are medians of ratios over all rounds, with quartiles. As `serve`
this file is run by the other tree's code, whatever that is: it uses what every version has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

WORKS = {"tiny": 200, "burst": 1, "small": 100, "write": 1, "read": 2}
"""How often in a turn: a commit of 1 KiB, 200 files of 20 KiB written at once, one of them read,
16 MiB."""
WARM_COMMITS = 300
ROUNDS = 4
TURNS = 10
IDLE_S = 5.0
END_TIMEOUT_S = 30.0


class Side:
    """A tree at work, in a process of its own."""

    def __init__(self, tree: Path, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
        )

    def cpu_s(self, work: str, times: float) -> float:
        self.begin(work, times)
        return self.end()

    def begin(self, work: str, times: float) -> None:
        _pipe(self._process.stdin).write(json.dumps([work, times]) + "\n")
        _pipe(self._process.stdin).flush()

    def end(self) -> float:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise SystemExit("a side has ended: what it said is above")
        return float(line)

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def compare(
    trees: Sequence[Path], *, rounds: int, turns: int, idle_s: float, say: Callable[[str], None]
) -> None:
    """Says what each work costs in the first tree and in the second, and the ratio."""
    spent: dict[str, list[list[float]]] = {work: [[], []] for work in (*WORKS, "idle")}
    for number in range(rounds):
        with _sides(trees, first=number % 2) as sides:
            for side in sides:
                side.cpu_s("tiny", WARM_COMMITS)
            _take_turns(sides, turns=turns, idle_s=idle_s, spent=spent)
    for work, found in spent.items():
        say(f"{work:8}{_line(found, 'ms' if work in WORKS else '% of a core')}")


@contextmanager
def _sides(trees: Sequence[Path], *, first: int) -> Iterator[list[Side]]:
    """A new process of each: two of the same code differ by some percent for as long as they
    live."""
    sides: dict[int, Side] = {}
    try:
        for number in (first, 1 - first):
            sides[number] = Side(trees[number], f"against-{number}")
        yield [sides[0], sides[1]]
    finally:
        for side in sides.values():
            side.close()


def _take_turns(
    sides: Sequence[Side], *, turns: int, idle_s: float, spent: dict[str, list[list[float]]]
) -> None:
    for work, times in WORKS.items():
        for turn in range(-1, turns):  # the first one only warms up
            for number in (0, 1) if turn % 2 else (1, 0):
                cpu_ms = 1000 * sides[number].cpu_s(work, times) / times
                if turn >= 0:
                    spent[work][number].append(cpu_ms)
    for _ in range(turns):  # at the same time: neither can have the quieter machine
        for side in sides:
            side.begin("idle", idle_s / turns)
        for number, side in enumerate(sides):
            spent["idle"][number].append(100 * side.end() / (idle_s / turns))


def _line(spent: list[list[float]], unit: str) -> str:
    before, after = map(statistics.median, spent)
    ratios = [b / a for a, b in zip(*spent, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
    return f"{before:8.3f} {after:8.3f} {unit}, ratio {middle:.3f} [{low:.3f} to {high:.3f}]"


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def serve(name: str) -> None:
    """Does what each line asks for, and says how much CPU it took."""
    with tempfile.TemporaryDirectory(prefix="diskless-against-") as home:
        os.environ["DISKLESS_HOME"] = home
        # Of whichever tree this is.
        from diskless.config import ClusterSettings
        from diskless.launch.local import LocalCluster

        settings = ClusterSettings(
            name=name, agents=6, data_shards=4, parity_shards=2, memory_bytes=512 << 20
        )
        with LocalCluster(settings) as cluster, cluster.connect() as client:
            works = _works(client)
            for line in sys.stdin:
                work, times = json.loads(line)
                began_s = time.process_time()
                works[work](times)
                print(time.process_time() - began_s, flush=True)


def _works(client: Any) -> dict[str, Callable[[Any], None]]:
    tiny, bulk = os.urandom(1024), os.urandom(16 << 20)
    burst = {f"/burst/{n}": os.urandom(20 << 10) for n in range(200)}
    client.write("/read", bulk)
    client.write_many({f"/small/{n}": os.urandom(20 << 10) for n in range(200)})

    def repeat(work: Callable[[int], object]) -> Callable[[int], None]:
        def times(count: int) -> None:
            for number in range(count):
                work(number)

        return times

    return {
        "tiny": repeat(lambda n: client.write(f"/tiny/{n}", tiny, overwrite=True)),
        "burst": repeat(lambda _: client.write_many(burst, overwrite=True)),
        "small": repeat(lambda n: client.read(f"/small/{n}")),
        "write": repeat(lambda _: client.write("/write", bulk, overwrite=True)),
        "read": repeat(lambda _: client.read("/read")),
        "idle": time.sleep,
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m diskless.bench.against", description=__doc__)
    parser.add_argument("tree", type=Path, help="of the code that this one is compared with")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    options = parser.parse_args(given)
    if not (options.tree / "diskless/rpc/v1").is_dir():
        parser.error(f"{options.tree}: no tree of diskless, or proto/build.py was not run in it")
    if min(options.rounds, options.turns) < 1 or options.idle_s <= 0:
        parser.error("--rounds, --turns and --idle-s must be more than 0")
    here = Path(__file__).parents[2]
    compare(
        (options.tree, here),
        rounds=options.rounds,
        turns=options.turns,
        idle_s=options.idle_s,
        say=print,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main()
