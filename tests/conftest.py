"""What all tests share: a private home for descriptors, and clusters that end with the test."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from diskless.client import Client
from diskless.launch.local import LocalCluster
from tests.support import start_cluster

pytest_plugins = ["tests.parallel"]

StartCluster = Callable[..., LocalCluster]
Connect = Callable[..., Client]


def pytest_configure() -> None:
    """Programs under test shall hear Ctrl-C, also where the tests run in the background of a
    shell: that has them, and all that they start, ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def diskless_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test may see, or leave anything in, the home of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISKLESS_HOME", str(tmp_path_factory.mktemp("diskless-home")))
        yield


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
