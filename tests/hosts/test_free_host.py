"""A host is free: what was on one that is cut off, or dies, begins again there."""

import time
from collections.abc import Iterator

import pytest

from cluster.hosts import RAY_PORT
from diskless.client import connect
from diskless.client.descriptor import HOME_VARIABLE
from diskless.config import MIB
from diskless.launch.silences import PATIENCE_S
from diskless.launch.spread import RayletReply
from tests.hosts.support import NAME, POLL_S, Site
from tests.hosts.test_hosts import raylets
from tests.support import content

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

DATA = content(3 * MIB)


@pytest.fixture
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four hosts, of which three have agents."""
    site = Site(tmp_path_factory.mktemp("four"), hosts=4, agents=3, parity_shards=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(site.directory / "home"))
        try:
            site.up()
            yield site
        finally:
            site.hosts.down()


def homes(site: Site) -> dict[int, str]:
    """The slot on each host that has one which is up."""
    return {number: row.slot for number, row in site.agents().items() if row.state == "up"}


def test_it_gets_the_agent_of_one_that_is_cut_off_and_that_one_is_free_when_it_is_back(
    four: Site,
) -> None:
    with connect(NAME) as client:
        client.write("/kept", DATA)
    before = homes(four)
    cut = next(number for number in before if number != 1)
    [free] = {1, 2, 3, 4} - set(before)
    slot, old, raylet = before[cut], four.agents()[cut].pid, raylets(four, cut)
    cut_s = time.monotonic()
    four.host(cut).cut()
    four.wait(f"{slot} to be on host {free}", lambda _: homes(four).get(free) == slot)
    assert time.monotonic() - cut_s > PATIENCE_S[RayletReply.SILENT], "it might have come back"
    four.wait_margin()

    four.host(cut).join()
    # Ray ends the agent that was there; its node lives on, and has room.
    deadline_s = time.monotonic() + 90
    while old in four.host(cut).processes():
        assert time.monotonic() < deadline_s, "the old life was not ended"
        time.sleep(POLL_S)
    assert raylets(four, cut) == raylet
    assert homes(four).get(free) == slot, "nobody moved back"

    # Not the head: without Ray nobody begins again anywhere.
    victim = next(number for number in sorted(homes(four), reverse=True) if number != 1)
    lost = homes(four)[victim]
    four.kill(victim)
    four.wait(f"{lost} to be on host {cut}", lambda _: homes(four).get(cut) == lost)
    four.wait_margin()
    with connect(NAME) as client:
        assert client.read("/kept") == DATA
    four.back(victim)  # It is free now, and does not disturb anybody.
    assert set(homes(four)) == {1, 2, 3, 4} - {victim}
    assert nodes_of_ray(four) == 4, "a node that is dead is listed as alive"


def nodes_of_ray(site: Site) -> int:
    """How many Ray takes for alive."""
    address = f"{site.hosts.head.address}:{RAY_PORT}"
    ask = f"import ray; ray.init('{address}', logging_level='error', log_to_driver=False); "
    told = site.python(1, "-c", ask + "print(sum(node['Alive'] for node in ray.nodes()))")
    assert told.returncode == 0, told.stderr
    return int(told.stdout.split()[-1])
