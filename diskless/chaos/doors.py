"""Telling agents what faults are planted in them."""

from collections.abc import Mapping

from diskless.client import Client, doors
from diskless.client.descriptor import Descriptor
from diskless.errors import BadRequest, DisklessError, Forbidden, Unavailable
from diskless.protocol.messages import Faults, Kind, Peer, Planted


class Doors:
    def __init__(self, known: Descriptor, client: Client) -> None:
        self._doors = doors.Doors(known, client, label="chaos")

    def peers(self) -> Mapping[int, Peer]:
        """Where the agents are now. Raises DeadlineExceeded if none answers."""
        return self._doors.peers()

    def plant(self, peer: Peer, faults: Faults) -> Planted:
        """Raises Unavailable when that agent does not answer, Forbidden if it takes no faults."""
        try:
            planted: Planted = self._doors.ask(peer, Kind.FAULTS, faults)
        except (Forbidden, BadRequest, Unavailable):
            raise
        except DisklessError as error:
            raise Unavailable(f"faults were refused: {error}") from error
        return planted
