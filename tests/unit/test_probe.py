"""What an operator is told about a Ray that was started without us in mind."""

import pytest

from diskless.launch import private_ray
from diskless.launch.probe import Probe, _about_patience, probe_worker

PATIENT = Probe("1", 0, 0, "0", "31536000", "10000000")


def test_a_ray_as_we_start_it_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in private_ray.environment("token", {}).items():
        monkeypatch.setenv(name, value)
    assert _about_patience([probe_worker(), probe_worker()]) == []


@pytest.mark.parametrize("short", ["", "60", "a while"])
@pytest.mark.parametrize("which", ["gcs_patience_s", "node_patience_checks"])
def test_one_node_that_is_not_is_one_too_many(short: str, which: str) -> None:
    """Any of them may be the head, and any of them ends without it."""
    [warning] = _about_patience([PATIENT, PATIENT._replace(**{which: short})])
    assert private_ray.GCS_PATIENCE in warning
    assert private_ray.NODE_PATIENCE in warning
