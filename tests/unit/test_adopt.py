"""What `diskless adopt` refuses before it touches anything."""

import pytest

from diskless.client import descriptor
from diskless.client.descriptor import Descriptor
from diskless.errors import BadRequest, BadSettings
from diskless.launch.adopt import adopt
from diskless.launch.record import RayRecord


def no_progress(_what: str, _done: int, _total: int) -> None:
    pass


def test_a_ray_of_the_clusters_own_cannot_be_replaced():
    descriptor.save(Descriptor(cluster="c", name="own", secret="s", ray=RayRecord().to_dict()))
    with pytest.raises(BadRequest, match="a Ray of its own"):
        adopt("own", "10.0.0.1:6380", progress=no_progress)


def test_an_address_without_a_port_is_refused():
    with pytest.raises(BadSettings, match="HOST:PORT"):
        adopt("own", "10.0.0.1", progress=no_progress)
