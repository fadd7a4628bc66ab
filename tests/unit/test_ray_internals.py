"""What we use of Ray's private parts is there, and another Ray is refused before it is imported."""

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray

import diskless
from diskless.errors import LaunchFailed
from diskless.launch import ray_internals, ray_link
from diskless.launch.record import RayRecord

PROJECT = Path(diskless.__file__).parents[1] / "pyproject.toml"


def test_the_bounds_are_those_of_the_package() -> None:
    dependencies = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    assert [one for one in dependencies if one.startswith("ray")] == [ray_internals.REQUIREMENT]


def test_the_installed_ray_is_accepted() -> None:
    assert ray_internals.is_tested(metadata.version("ray"))
    ray_internals.check_version()


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.59.0", "2.61.0", "2.61.0rc1", "3.0.0"])
def test_another_ray_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(LaunchFailed, match=r"pip install 'ray>=2\.60,<2\.61'"):
        ray_internals.check_version(version)


def test_nothing_is_attached_to_a_ray_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "2.61.0")
    record = RayRecord(requested="127.0.0.1:1")
    with pytest.raises(LaunchFailed, match=r"Ray 2\.61\.0 is not supported"):
        ray_link.attach(record, "any")


def test_the_calls_of_the_control_store_are_there() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        method, request = ray_internals.alive_nodes(channel)
        assert callable(method)
        assert request.HasField("state_filter")
        method, request = ray_internals.unregister_node(channel, "ab" * 28, "its host is gone")
        assert callable(method)
        assert request.node_id == b"\xab" * 28
        assert request.node_death_info.reason_message == "its host is gone"


def test_rays_own_lines_are_kept_from_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import worker

    printed: list[Any] = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda *line, **_: printed.append(line))
    ray_internals.hush(ray)
    worker.print_to_stdstream({"lines": ["an actor died"]})
    assert not printed
