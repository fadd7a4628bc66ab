"""The table of requests: which struct the meta of a frame of each kind is.

It is checked on decoding, so that a handler only sees well-formed requests.
"""

import msgspec
from msgspec import Struct

from diskless.protocol import checkpoints, history, operating, tier, tokens
from diskless.protocol.messages import (
    Abort,
    Commit,
    Delete,
    Empty,
    Hello,
    Kind,
    List,
    Mkdirs,
    Open,
    OpenMany,
    OpenSession,
    Prove,
    Put,
    Read,
    Rename,
    Stat,
    Summary,
    Write,
)

Mutation = (
    Put
    | Mkdirs
    | Rename
    | Delete
    | history.Snapshot
    | history.RenameSnapshot
    | history.DeleteSnapshots
    | history.Clone
    | history.Rollback
    | history.Prune
    | history.Replace
    | checkpoints.KeepLeases
)
"""What happens once: its session and sequence make it so."""

REQUESTS: dict[Kind, type[Struct]] = {
    Kind.HELLO: Hello,
    Kind.PROVE: Prove,
    Kind.SESSION: OpenSession,
    Kind.ROSTER: Empty,
    Kind.PUT: Put,
    Kind.WRITE: Write,
    Kind.COMMIT: Commit,
    Kind.ABORT: Abort,
    Kind.OPEN: Open,
    Kind.OPEN_MANY: OpenMany,
    Kind.READ: Read,
    Kind.STAT: Stat,
    Kind.LIST: List,
    Kind.MKDIRS: Mkdirs,
    Kind.RENAME: Rename,
    Kind.DELETE: Delete,
    Kind.SUMMARY: Summary,
    Kind.STATUS: Empty,
    Kind.EVENTS: operating.Events,
    Kind.DRAIN: operating.Drain,
    Kind.SNAPSHOT: history.Snapshot,
    Kind.SNAPSHOTS: history.Snapshots,
    Kind.RENAME_SNAPSHOT: history.RenameSnapshot,
    Kind.DELETE_SNAPSHOTS: history.DeleteSnapshots,
    Kind.CLONE: history.Clone,
    Kind.ROLLBACK: history.Rollback,
    Kind.PRUNE: history.Prune,
    Kind.REPLACE: history.Replace,
    Kind.LEASES: checkpoints.Leases,
    Kind.KEEP_LEASES: checkpoints.KeepLeases,
    Kind.NOTE_BATCHES: checkpoints.NoteBatches,
    Kind.BATCH_NOTES: checkpoints.BatchNotes,
    Kind.DIFF: history.Diff,
    Kind.USAGE: history.Usage,
    Kind.RENEW: operating.Renew,
    Kind.ISSUE_TOKEN: tokens.IssueToken,
    Kind.REVOKE_TOKEN: tokens.RevokeToken,
    Kind.TOKENS: tokens.Tokens,
    Kind.FAULTS: operating.Faults,
    Kind.SET_POLICY: tier.SetPolicy,
    Kind.REMOVE_POLICY: tier.RemovePolicy,
    Kind.POLICY: tier.Policy,
    Kind.FLUSH: tier.Flush,
    Kind.ATTACH_TIER: tier.AttachTier,
    Kind.DETACH_TIER: tier.DetachTier,
    Kind.DRILLED: tier.Drilled,
}

DECODERS = {kind: msgspec.json.Decoder(struct) for kind, struct in REQUESTS.items()}
