"""How the suite is shared out among the workers of `make test`.

Tests of one file stay together and in their order: they share what its fixtures start. A
worker takes the next file when it is done with one, and the longest come first, so that no
worker is left with a long one at the end. Every worker is a process with a home and temporary
directories of its own; names of clusters are drawn at random, ports are the system's choice.

Files with a Spark are one unit of work, and files with a Ray another: two of a kind at once
take a machine with two cores from all others. What compares rates comes last, when all other
workers have ended.
"""

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parent.parent

SPARK = ("tests/spark/",)
RAY = ("tests/cluster/test_ray_", "tests/chaos/test_ray_")
ALONE = (
    "tests/chaos/test_slow.py",
    "tests/cluster/test_beside_strangers.py",
    "tests/cluster/test_idle.py",
)
TOGETHER = (SPARK, RAY, ALONE)

LONGEST_FIRST = (
    *SPARK,
    *RAY,
    "tests/sim/",
    "tests/tier/",
    "tests/chaos/",
    "tests/cluster/test_repair",
    "tests/cluster/test_floods",
    "tests/cluster/test_space",
    "tests/cluster/test_losses",
    "tests/unit/test_turns",
    "tests/unit/test_namespace_tier",
    "tests/model/",
    "tests/cluster/",
    "tests/unit/test_cli",
    "tests/unit/test_memory",
    "tests/",
)


class ByFile(LoadFileScheduling):
    """One unit of work for each file, or for all files that are named together."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((files[0] for files in TOGETHER if file.startswith(files)), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._comes_last or self.nodes == [node]:
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        others = [other for other in self.nodes if other is not node]
        if not self._comes_last or not others:
            super()._reschedule(node)
        elif not all(other.shutting_down for other in others):
            node.shutdown()  # when it has done what it has; one of them stays for the last

    def remove_node(self, node: WorkerController) -> str | None:
        crashed = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    @property
    def _comes_last(self) -> bool:
        """Whether all that is left must have the machine to itself."""
        return list(self.workqueue) == [ALONE[0]]


def rank(item: pytest.Item) -> int:
    file = item.path.relative_to(ROOT).as_posix()
    if file.startswith(ALONE):
        return len(LONGEST_FIRST)
    return next(n for n, prefix in enumerate(LONGEST_FIRST) if file.startswith(prefix))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=rank)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False  # it would have the file with most tests first
    return ByFile(config, log)
