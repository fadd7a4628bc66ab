"""What an operator is told about a Ray that was started without us in mind."""

import pytest

from diskless.launch import private_ray
from diskless.launch.probe import Probe, _about_patience, probe_worker


def probe(gcs_patience_s: str = "", node_patience_checks: str = "") -> Probe:
    return Probe("1", 0, 0, "0", gcs_patience_s, node_patience_checks)


PATIENT = probe("31536000", "10000000")


def test_a_ray_as_we_start_it_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in private_ray.environment("token", {}).items():
        monkeypatch.setenv(name, value)
    assert _about_patience([probe_worker(), probe_worker()]) == []


@pytest.mark.parametrize("short", ["", "60", "a while"])
def test_one_node_that_does_not_wait_for_the_head_is_one_too_many(short: str) -> None:
    [warning] = _about_patience([PATIENT, probe(short, PATIENT.node_patience_checks)])
    assert private_ray.GCS_PATIENCE in warning
    assert "every host" in warning


@pytest.mark.parametrize("few", ["", "5", "a few"])
def test_the_head_must_wait_for_nodes_and_nobody_else(few: str) -> None:
    others = probe(PATIENT.gcs_patience_s, few)
    assert _about_patience([PATIENT, others]) == []
    [warning] = _about_patience([others, others])
    assert private_ray.NODE_PATIENCE in warning
