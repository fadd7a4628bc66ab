"""Where the audit files of a cluster are, on the host of an agent.

They outlive the agents and the cluster: `down` leaves them. Hosts that share a disk have a
directory each, because a slot may begin again on one host while its last life still writes on
another.
"""

import socket

from diskless.client import descriptor
from diskless.config import NO_AUDIT, ClusterSettings

ID_CHARS = 8


def audit_dir(settings: ClusterSettings, cluster_id: str) -> str:
    """The directory for agents of this host; "" if there shall be no files."""
    if settings.audit == NO_AUDIT:
        return ""
    base = settings.audit or str(descriptor.home() / "audit")
    return f"{base}/{settings.name}-{cluster_id[:ID_CHARS]}/{socket.gethostname()}"
