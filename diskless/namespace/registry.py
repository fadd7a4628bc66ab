"""What commands do with the tables beside the tree: tokens and policies."""

from typing import TYPE_CHECKING

from diskless import paths, policy
from diskless.errors import BadRequest
from diskless.namespace import commands as c
from diskless.namespace.journal import TokensForgotten
from diskless.namespace.tokens import Token
from diskless.namespace.weights import policy_bytes

if TYPE_CHECKING:
    from diskless.namespace.state import NamespaceState


def run(state: "NamespaceState", command: c.Registry) -> c.Done:
    state.tier.check_open()
    if isinstance(command, c.IssueToken | c.RevokeToken):
        forgotten = state.tokens.forget(now_ms=state.clock_ms)
        if forgotten and state.tier.attached:
            state.note(TokensForgotten(), c.Done())
    done = make(state, command)
    if done.changed and state.tier.attached:
        state.note(command, done)
    return done


def make(state: "NamespaceState", command: c.Registry) -> c.Done:
    match command:
        case c.IssueToken():
            return issue(state, command)
        case c.RevokeToken(name):
            changed = state.tokens.revoke(name, now_ms=state.clock_ms)
            return c.Done(int(state.tokens.is_registered(name)), changed=changed)
        case c.SetPolicy():
            return set_policy(state, command)
        case c.RemovePolicy(path, key):
            return remove_policy(state, path, key)


def issue(state: "NamespaceState", command: c.IssueToken) -> c.Done:
    token = Token(command.name, command.paths, command.writes, command.expires_s, state.clock_ms)
    if state.tokens.has(token):
        return c.Done(changed=False)
    state.check_room(token.bytes_used, f"the token {token.name!r}")
    state.tokens.add(token)
    return c.Done()


def set_policy(state: "NamespaceState", command: c.SetPolicy) -> c.Done:
    path, key, value = command.path, command.key, command.value
    policy.check(key, value)
    state.policies.check_new(path)
    if policy.needs_a_tier(key, value) and not state.tier.attached:
        raise BadRequest(
            f"{path}: {key}={value} needs a durable tier and none is attached: start the "
            "cluster with --tier URI"
        )
    k = state.parity_shards
    if key == policy.PARITY and k and int(value) > k and not state.trusts:
        raise BadRequest(f"{path}: {key}={value} is more than the cluster's k, which is {k}")
    if path not in state.policies.table:
        state.check_room(policy_bytes(path, {key: value}), path)
    return c.Done(changed=state.policies.set(path, key, value))


def remove_policy(state: "NamespaceState", path: str, key: str) -> c.Done:
    paths.split(path)
    if key:
        policy.check_key(key)
    removed = state.policies.remove(path, key)
    return c.Done(removed, changed=removed > 0)
