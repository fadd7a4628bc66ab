"""What all tests share: a private home for descriptors, and clusters that end with the test."""

import gc
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings

from diskless.agent.leading import slowness
from diskless.agent.leading.slowness import SLOW_AFTER_S
from diskless.client import Client
from diskless.launch.local import LocalCluster
from diskless.spark.jar import BRIEF_JVM
from tests.support import start_cluster

pytest_plugins = ["tests.parallel", "diskless.testing.fixtures"]

StartCluster = Callable[..., LocalCluster]
Connect = Callable[..., Client]


settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
"""As Hypothesis would have it here, or in CI, but no example fails for the time that it takes."""


def pytest_configure() -> None:
    """Programs under test shall hear Ctrl-C, also where the tests run in the background of a
    shell: that has them, and all that they start, ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What all modules and tests consist of is never looked through again. To do so took a quarter
    of a second of CPU each time, in which all agents of a test stood still."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def diskless_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test may see, or leave anything in, the home of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISKLESS_HOME", str(tmp_path_factory.mktemp("diskless-home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def brief_jvms() -> Iterator[None]:
    """Also of executors and of Spark's own launcher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", " ".join(BRIEF_JVM))
        yield


@pytest.fixture(scope="session", autouse=True)
def nobody_slow() -> Iterator[None]:
    """No agent in this process counts as slow, and gets no shards for it, because the machine is
    busy. What is about slow agents asks for `slow_agents`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slowness, "SLOW_AFTER_S", math.inf)
        yield


@pytest.fixture
def slow_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that are slow count as slow."""
    monkeypatch.setattr(slowness, "SLOW_AFTER_S", SLOW_AFTER_S)


@pytest.fixture
def start() -> Iterator[StartCluster]:
    """Starts clusters (see `start_cluster`) that are checked and closed after the test."""
    with ExitStack() as clusters:

        def begin(**settings: Any) -> LocalCluster:
            return clusters.enter_context(start_cluster(**settings))

        yield begin


@pytest.fixture
def connect(start: StartCluster) -> Iterator[Connect]:
    """Connects clients to clusters; they are closed after the test, before the clusters."""
    with ExitStack() as clients:

        def begin(cluster: LocalCluster, **settings: Any) -> Client:
            return clients.enter_context(cluster.connect(**settings))

        yield begin
