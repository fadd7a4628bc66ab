"""How the suite is shared out among the workers of `make test`.

Tests of one file stay together and in their order: they share what its fixtures start. A
worker takes the next file when it is done with one, and the longest come first, so that no
worker is left with a long one at the end. Every worker is a process with a home and temporary
directories of its own; names of clusters are drawn at random, ports are the system's choice.
"""

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parent.parent

SPARK = "tests/spark/"
STREAMS = "tests/spark/test_streams.py"
"""As long as all other files of Spark together: these two get a Spark each, and there are no
more than two on a machine with few cores."""

LONGEST_FIRST = (
    STREAMS,
    SPARK,
    "tests/cluster/test_ray_",
    "tests/chaos/test_ray_",
    "tests/model/",
    "tests/cluster/test_repair",
    "tests/cluster/",
    "tests/chaos/",
    "tests/sim/",
    "tests/unit/test_cli",
    "tests/",
)


class ByFile(LoadFileScheduling):
    """One unit of work for each file, except that most of Spark's are one together."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return SPARK if file.startswith(SPARK) and file != STREAMS else file


def rank(item: pytest.Item) -> int:
    file = item.path.relative_to(ROOT).as_posix()
    return next(n for n, prefix in enumerate(LONGEST_FIRST) if file.startswith(prefix))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=rank)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False  # it would have the file with most tests first
    return ByFile(config, log)
