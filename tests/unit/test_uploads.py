"""Uploads, as far as they need no other agent."""

from typing import Any, cast

from diskless.agent.memory import Memory
from diskless.agent.ports import Hold
from diskless.agent.uploads import Uploads
from diskless.config import Tuning
from diskless.model import Place, Stripe

UPLOADS = 100


def test_what_is_held_for_many_uploads_is_told_once_for_each_writer() -> None:
    """The fence of a writer is the lowest number that anybody may still want."""
    unused = cast(Any, None)  # nothing is sealed here
    uploads = Uploads(writer=unused, tuning=Tuning(), now_s=lambda: 0.0, memory=Memory(1 << 30))
    places = (Place(0, 1), Place(1, 1))
    for number in range(UPLOADS):
        mine = Stripe(f"1.1.{500 - number}", 1, 1, 10, places)
        other = Stripe(f"2.3.{number + 7}", 1, 1, 10, places)
        uploads.get(number, 20, [mine, other])
    uploads.keep(uploads.get(UPLOADS, 10, [Stripe("2.3.4", 1, 1, 10, places)]))
    found = sorted(uploads.holds(), key=lambda hold: hold.slot)
    assert found == [Hold(1, 1, 401), Hold(2, 3, 4)]
