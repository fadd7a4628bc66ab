"""Speaking to one agent in particular: nothing is routed, and nothing is tried twice."""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from diskless.client.client import Client
from diskless.client.descriptor import Descriptor
from diskless.client.greeting import Greeter
from diskless.protocol.messages import Kind, Peer

TIMEOUT_S = 2.0


class DirectCalls:
    """The agents' own gateways."""

    def __init__(self, known: Descriptor, client: Client, *, label: str) -> None:
        """`label` is how agents call us in their logs."""
        self._greeter = Greeter(known)
        self._client = client
        self._label = label

    def peers(self) -> Mapping[int, Peer]:
        """Where the agents are now. Raises DeadlineExceeded if none answers."""
        return {peer.slot: peer for peer in self._client.agents()}

    def ask(self, peer: Peer, kind: Kind, meta: Struct) -> Any:
        """What that agent replies. Raises Unavailable when it does not, or why it refuses."""
        deadline = time.monotonic() + TIMEOUT_S
        connection = self._greeter.connect(peer, client=self._label, deadline=deadline)
        try:
            reply = connection.request(kind, meta, deadline=deadline)
        finally:
            connection.close()
        if reply.error is not None:
            raise reply.error
        return reply.meta
