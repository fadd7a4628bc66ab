"""What paths ask for, set and shown by a client."""

from typing import cast

from diskless.client.caller import Caller
from diskless.protocol.messages import Kind
from diskless.protocol.tier import (
    Policies,
    Policy,
    PolicyChanged,
    PolicyEntry,
    RemovePolicy,
    SetPolicy,
)


class PolicyTable:
    """Of one cluster. To change it one must be an admin: else it raises Forbidden."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def set(self, path: str, key: str, value: str) -> bool:
        """From now on `path`, and all below it, asks for this; whether it did not before. Raises
        BadRequest, with those that there are, for an unknown key or value."""
        request = SetPolicy(path, key, value)
        reply = self._caller.call(Kind.SET_POLICY, request, what=f"policy {path}")
        return cast(PolicyChanged, reply.meta).changed

    def remove(self, path: str, key: str = "") -> bool:
        """Takes a policy off a path, or all that it has; whether there was one."""
        request = RemovePolicy(path, key)
        reply = self._caller.call(Kind.REMOVE_POLICY, request, what=f"policy {path}")
        return cast(PolicyChanged, reply.meta).changed

    def effective(self, path: str) -> list[PolicyEntry]:
        """What holds at a path, which need not be there, and where that comes from."""
        return self.look(path).entries

    def look(self, path: str) -> Policies:
        """The same, with the quotas that hold there and how the file there is looked after."""
        reply = self._caller.call(Kind.POLICY, Policy(path), what=f"policy {path}")
        return cast(Policies, reply.meta)
