"""Single calls to services that are not ours, such as those of Ray's control store."""

from collections.abc import Callable
from typing import Any

import grpc

from diskless.errors import Unavailable


def ask(method: Callable[..., Any], request: Any, *, timeout_s: float) -> Any:
    """Calls a method of a stub or a channel. Raises Unavailable, with what gRPC says of it."""
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        raise Unavailable(details or type(error).__name__) from error
