"""Marks that agents put on what clients bring back: extents that they may read, stripes that
they have sealed.

A client reads by extents and resumes an upload by stripes, at any agent, which keeps nothing
about either. So an agent marks what it hands out, with a key that only agents have, for the
principal that it hands it to; another agent then knows that it was handed out.
"""

import hashlib
import hmac

from diskless.identity.claims import Keyring

MARK_BYTES = 12


class Grants:
    """Makes and compares marks."""

    def __init__(self, keyring: Keyring) -> None:
        self._key = keyring.derive("grants")

    def mark(self, kind: str, holder: str, *facts: object) -> str:
        """`holder` is the text of a principal's claims."""
        text = "\0".join((kind, holder, *map(str, facts)))
        data = text.encode(errors="surrogatepass")
        return hashlib.blake2b(data, key=self._key, digest_size=MARK_BYTES).hexdigest()

    def holds(self, mark: str, kind: str, holder: str, *facts: object) -> bool:
        expected = self.mark(kind, holder, *facts)
        return hmac.compare_digest(mark.encode(errors="surrogatepass"), expected.encode())
