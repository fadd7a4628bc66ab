"""The Python client of a cluster: `connect()` and what it gives."""

from diskless.client.client import Client, connect

__all__ = ["Client", "connect"]
