"""Fixtures for pytest: `pytest_plugins = ["diskless.testing.fixtures"]` in a conftest.py."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from diskless.testing.cluster import Cluster


@pytest.fixture
def make_diskless_cluster() -> Iterator[Callable[..., Cluster]]:
    """Opens a cluster with the arguments of `Cluster`; it ends with the test. One at a time."""
    with ExitStack() as stack:

        def make(**settings: object) -> Cluster:
            return stack.enter_context(Cluster(**settings))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def diskless_cluster(make_diskless_cluster: Callable[..., Cluster]) -> Cluster:
    """Six agents, 4+2, at `diskless:///`, for one test."""
    return make_diskless_cluster()
