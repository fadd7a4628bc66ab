"""Telling agents what faults are planted in them."""

from collections.abc import Mapping

from diskless.client import Client
from diskless.client.descriptor import Descriptor
from diskless.client.direct import DirectCalls
from diskless.errors import BadRequest, DisklessError, Forbidden, Unavailable
from diskless.protocol.messages import Kind, Peer
from diskless.protocol.operating import Faults, Planted


class FaultPlanter:
    def __init__(self, known: Descriptor, client: Client) -> None:
        self._direct = DirectCalls(known, client, label="chaos")

    def peers(self) -> Mapping[int, Peer]:
        """Where the agents are now. Raises DeadlineExceeded if none answers."""
        return self._direct.peers()

    def plant(self, peer: Peer, faults: Faults) -> Planted:
        """Raises Unavailable when that agent does not answer, Forbidden if it takes no faults."""
        try:
            planted: Planted = self._direct.ask(peer, Kind.FAULTS, faults)
        except (Forbidden, BadRequest, Unavailable):
            raise
        except DisklessError as error:
            raise Unavailable(f"faults were refused: {error}") from error
        return planted
