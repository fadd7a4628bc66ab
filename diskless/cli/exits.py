"""Exit statuses, in the words that help uses. The numbers are those of diskless.errors."""

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
EXISTS = 4
WRONG_KIND = 5
UNREADABLE = 6
NO_ROOM = 7
TOO_FEW_AGENTS = 8
UNAVAILABLE = 9
DEADLINE = 10
UNAUTHORIZED = 11
BAD_FRAME = 12
NO_CLUSTER = 13
CLUSTER_EXISTS = 14
FILES_EXIST = 15
LAUNCH_FAILED = 16
SPARK_UNUSABLE = 17
OVER_BUDGET = 18
PROMISE_BROKEN = 19
NOT_HEALED = 20
BEYOND_PROMISE = 21
BOUND_MISSED = 22
HAS_SNAPSHOTS = 23
READ_ONLY = 24
FORBIDDEN = 25
TIER_REFUSED = 26
SUPERSEDED = 27
RESTORED = 28
IN_USE = 29
NO_RETURN = 30
UNWELL = 31
INTERRUPTED = 130
BROKEN_PIPE = 141

MEANING = {
    OK: "done",
    FAILED: "something else failed, or diskless has a bug",
    USAGE: "a bad option, setting or path",
    NOT_FOUND: "there is no such file or directory",
    EXISTS: "the target exists already",
    WRONG_KIND: "a directory where a file was needed, the reverse, or one that is not empty",
    UNREADABLE: "too few shards are readable (TooFewShards), or bytes are corrupt",
    NO_ROOM: "no room in the memory of enough agents",
    TOO_FEW_AGENTS: "too few agents are alive for a protected write",
    UNAVAILABLE: "the cluster, or its leader, cannot be reached",
    DEADLINE: "no answer in time",
    UNAUTHORIZED: "a key or token is missing, wrong, expired or revoked, or no agent listens there",
    BAD_FRAME: "the agent did not understand this client",
    NO_CLUSTER: "no cluster of that name is known here",
    CLUSTER_EXISTS: "the cluster exists already, with other settings",
    FILES_EXIST: "the cluster holds files",
    LAUNCH_FAILED: "Ray or an agent did not start, or did not end",
    SPARK_UNUSABLE: "Java or pyspark is missing or too old",
    OVER_BUDGET: "chaos refused: more agents would be down than --max-down allows",
    PROMISE_BROKEN: "chaos run: acknowledged data was lost or duplicated, or a byte was wrong",
    NOT_HEALED: "chaos run: the margin was not k again in time",
    BEYOND_PROMISE: "chaos run: more than k agents were broken, and the store failed loudly",
    BOUND_MISSED: "bench: all was measured, and a bound is missed",
    HAS_SNAPSHOTS: "a directory has snapshots, which keep it where it is",
    READ_ONLY: "what is below .snapshot cannot be changed",
    FORBIDDEN: "the token does not cover that path or verb, or the cluster takes no planted faults",
    TIER_REFUSED: "the tier's store refuses, has no such bucket, or the tier has another key",
    SUPERSEDED: "the tier's chain belongs to another cluster, or to a later restore",
    RESTORED: "the cluster was restored since the client began",
    IN_USE: "a query writes to that checkpoint, or has just done so",
    NO_RETURN: "the query cannot be brought to that batch, or that is no checkpoint",
    UNWELL: "doctor: something is wrong with this machine or the cluster",
    INTERRUPTED: "interrupted",
    BROKEN_PIPE: "the reader of the output has gone",
}

ASKING = (UNAVAILABLE, DEADLINE, UNAUTHORIZED, FORBIDDEN, NO_CLUSTER)
"""What may happen to any verb that speaks to a cluster."""
WRITING = (NO_ROOM, TOO_FEW_AGENTS)
TIER = (UNREADABLE, UNAVAILABLE, TIER_REFUSED, SUPERSEDED)
"""What may happen to any verb that looks at a tier itself."""
