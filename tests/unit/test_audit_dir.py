"""Where audit files are."""

import socket

from diskless.client import descriptor
from diskless.config import ClusterSettings
from diskless.launch.audit import audit_dir

CLUSTER = "0123456789abcdef"


def test_each_cluster_and_each_host_has_its_own() -> None:
    host = socket.gethostname()
    usual = descriptor.home() / "audit" / "night-01234567" / host
    assert audit_dir(ClusterSettings(name="night"), CLUSTER) == str(usual)
    chosen = ClusterSettings(name="night", audit="/var/log/diskless")
    assert audit_dir(chosen, CLUSTER) == f"/var/log/diskless/night-01234567/{host}"


def test_there_need_be_none() -> None:
    assert audit_dir(ClusterSettings(audit="none"), CLUSTER) == ""
