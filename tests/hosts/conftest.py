"""One set of hosts for all tests that need some: they take most of a minute to start.

A machine can have only one set, so test_bare_hosts.py, which makes its own, comes first; the
last test of test_lost_head.py leaves the hosts with another head, and comes last.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import permitted
from diskless.client.descriptor import HOME_VARIABLE
from tests.hosts.support import HOSTS, Site


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    if complaint := permitted():
        pytest.skip(f"hosts on this machine: {complaint}")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, namespaces: None) -> Iterator[Site]:
    directory: Path = tmp_path_factory.mktemp("hosts")
    site = Site(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(directory / "home"))
        try:
            site.up()
            yield site
        finally:
            site.hosts.down()


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """All hosts are up, connected and protected, whatever the test before did."""
    running.wait_margin()
    yield running
    for host in running.hosts.all:
        host.join()
    dead = [n for n in range(1, HOSTS + 1) if not any(running.host(n).processes())]
    running.back(*dead)
