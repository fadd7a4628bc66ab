"""One agent, put together: its parts, its doors and its background work.

Knows nothing of Ray: a Ray actor runs one `Node`, a local cluster several in one process.
"""

from diskless.node.node import Node
from diskless.node.settings import NodeSettings, gateway_port, read_wall_ms

__all__ = ["Node", "NodeSettings", "gateway_port", "read_wall_ms"]
