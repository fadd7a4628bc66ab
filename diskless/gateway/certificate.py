"""What an admin asks of an agent's certificate: what it is, and that it be another."""

from diskless.errors import BadRequest
from diskless.gateway.backend import Answer
from diskless.identity.certificates import Certificates, fingerprint, validity
from diskless.protocol.operating import Certificate, Renew


class CertificateHandlers:
    def __init__(self, tls: Certificates | None) -> None:
        self._tls = tls

    def renew(self, meta: Renew, _: object) -> Answer:
        """Raises BadRequest without TLS; BadSettings if the operator's files are not good, and
        then the agent continues with what it had."""
        if self._tls is None:
            if meta.show:
                return Certificate(), ()
            raise BadRequest("this cluster has no TLS: `diskless up --tls` starts one that has")
        renewed = not meta.show and self._tls.refresh()
        begin, end = validity(self._tls.pair.chain)
        shown = fingerprint(self._tls.pair.chain)
        return Certificate(shown, int(begin.timestamp()), int(end.timestamp()), renewed), ()
