"""A run of the benchmark: its parts one after the other, each in a process of its own."""

import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

from msgspec.structs import replace

from diskless.bench import machine
from diskless.bench.clusters import PartFailed, home, in_process
from diskless.bench.figures import Result
from diskless.bench.recorder import Recorder, Say
from diskless.bench.sizes import PARTS, Sizes, to_dict


def say(text: str) -> None:
    """How far it is, for people; a name in this module, so that a part can be sent it."""
    print(f"  {text}", file=sys.stderr, flush=True)


def silent(_: str) -> None:
    pass


def run(
    sizes: Sizes,
    *,
    only: Sequence[str] = (),
    command: str,
    profile: str,
    keep: Callable[[Result], object],
    quiet: bool = False,
) -> Result:
    """Measures what was asked for, and has what is there kept after each part.

    A part that fails is noted, and the others continue.
    """
    result = Result(
        started=time.strftime("%F %T"),
        command=command,
        profile=profile,
        sizes=to_dict(sizes),
        machine=machine.describe(),
        seconds={},
        series=[],
    )
    for title in only or PARTS:
        if not quiet:
            print(f"{title} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        found = _measure(title, sizes, silent if quiet else say)
        series, notes = ([], [f"{title} failed: {found}"])
        if isinstance(found, Recorder):
            series, notes = found.series, found.notes
        result = replace(
            result,
            seconds=result.seconds | {title: round(time.monotonic() - began, 1)},
            series=[*result.series, *series],
            notes=[*result.notes, *notes],
        )
        keep(result)
    return result


def _measure(title: str, sizes: Sizes, tell: Say) -> Recorder | str:
    """What a part found, or what it failed with: the others must not be lost for it."""
    try:
        with home():
            found = in_process(_part, title, sizes, tell)
    except PartFailed as error:
        return str(error)
    assert isinstance(found, Recorder)
    return found


def _part(title: str, sizes: Sizes, tell: Say) -> Recorder:
    """Imported here, so that a part whose library is missing fails alone."""
    measured: Recorder = import_module(f"diskless.bench.{title}").run(sizes, tell)
    return measured
