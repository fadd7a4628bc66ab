"""Speaking to one agent in particular, about the faults planted in it."""

import time
from collections.abc import Mapping

from diskless.client import Client
from diskless.client.descriptor import Descriptor
from diskless.client.greeting import Greeter
from diskless.errors import Unavailable
from diskless.protocol.messages import Faults, Kind, Peer, Planted

TIMEOUT_S = 2.0


class Doors:
    """The agents' own gateways: nothing is routed, and nothing is tried twice."""

    def __init__(self, known: Descriptor, client: Client) -> None:
        self._greeter = Greeter(known)
        self._client = client

    def peers(self) -> Mapping[int, Peer]:
        """Where the agents are now. Raises DeadlineExceeded if none answers."""
        return {peer.slot: peer for peer in self._client.agents()}

    def plant(self, peer: Peer, faults: Faults) -> Planted:
        """Raises Unavailable when that agent does not answer."""
        deadline = time.monotonic() + TIMEOUT_S
        connection = self._greeter.connect(peer, client="chaos", deadline=deadline)
        try:
            reply = connection.request(Kind.FAULTS, faults, deadline=deadline)
        finally:
            connection.close()
        if reply.error is not None:
            raise Unavailable(f"faults were refused: {reply.error}") from reply.error
        planted: Planted = reply.meta
        return planted
