"""The words for what is measured, and on what: one spelling for who measures and who judges."""

# Systems.
DISK = "disk"
DISK_FSYNC = "disk, fsync"
TMPFS = "tmpfs"
REDIS = "redis, 2 replicas"
PLAIN = "plain gRPC"
ISAL = "ISA-L alone"
MEMCPY = "memcpy"
ALL = "all"

MAIN_SHAPE = "4+2"
"""The shape that bounds are about."""


def diskless(shape: str) -> str:
    return f"diskless {shape}"


# The plain limits.
COPY = "copy of 64 MiB"
ENCODE = "1 MiB stripe encoded"
UNARY = "unary round trip"
STREAM = "1 MiB messages on one stream"
IDLE = "CPU while nothing works"

# The same work for every store.
TINY_SERIAL = "1 KiB commit, serial"
TINY_MANY = "1 KiB commit, 32-way"
BURST = "burst of 200 × 20 KiB"
BULK_WRITE = "64 MiB files, write"
BULK_READ = "64 MiB files, read"
BULK_READ_DOWN = "64 MiB files, read with k down"
SMALL_READ = "20 KiB file, read"
SMALL_READ_DOWN = "20 KiB file, read with k down"
MEMORY = "memory for each logical byte"
SURVIVED = "losses survived"

# One cluster alone.
SINGLE_WRITE = "256 MiB file, write"
SINGLE_READ = "256 MiB file, read"
SINGLE_READ_DOWN = "256 MiB file, read with k down"
SMALL_ONE_WRITER = "20 KiB files, one writer, not inline"
SMALL_WRITERS = "20 KiB files, 16 writers, not inline"
SMALL_MESSAGES = "gRPC messages for each of those"
STORED = "stored for each logical byte, at rest"
STAT = "stat"
LIST = "list of 10"
GAP = "no commit after SIGKILL of the leader"
LOST = "acknowledged puts lost in leader kills"

# Repair.
REPAIR_WRITE = "bulk write before repair"
REPAIR_RATE = "rebuild of 2 of 6 agents, under commits"
REPAIR_HEALTHY = "tiny commit before repair"
REPAIR_COMMIT = "tiny commit during repair"

# Spark.
SPARK_COMMIT = "atomic 1 KiB commit through Spark"
SPARK_FILE_COMMANDS = "commands for each checkpoint file"


def checkpoint(setup: str) -> str:
    return f"checkpoint, {setup}"


def trigger(setup: str) -> str:
    return f"trigger, {setup}"


def batch_commands(setup: str) -> str:
    return f"commands of a batch, {setup}"


def batch_bytes(setup: str) -> str:
    return f"bytes put by a batch, {setup}"


# Recovery.
AFTER_KILL = "SIGKILL of an agent to the next committed batch"
AFTER_KILL_BOUND = "2 healthy batches and 2 failure timeouts"
HEALTHY_BATCH = "healthy batch"
DETECTION = "detection of 2 kills"
HEALTHY_READ = "healthy read of everything"
DEGRADED_READ = "degraded read of everything"
REBUILD = "rebuild after their return"
TOTAL = "SIGKILL to margin k"


def restart(provider: str) -> str:
    return f"query restarted in a new JVM, {provider}"


def restart_query(provider: str) -> str:
    return f"the same without the JVM's start, {provider}"


def restart_bytes(provider: str) -> str:
    return f"the checkpoint's bytes, {provider}"


def restart_cached(provider: str) -> str:
    return f"the checkpoint in the page cache, {provider}"


# The past.
HISTORY_COMMIT = "1 KiB commit, beside verbs of the past"
HISTORY_SNAPSHOT = "snapshot, files in the directory"
HISTORY_CLONE = "clone, files in the directory"
HISTORY_ROLLBACK = "rollback, files in the directory"
HISTORY_BYTES = "stored by 20 of each of those"
HISTORY_READ = "20 KiB file, read at its path"
HISTORY_READ_PAST = "20 KiB file, read below .snapshot"
HISTORY_CPU = "commit, all processes"
HISTORY_CPU_BESIDE = "commit with a snapshot every second, all processes"
HISTORY_HELD = "held by snapshots of a query's checkpoint alone"
HISTORY_SHOWN = "the checkpoint itself, at the end"
HISTORY_WEIGHT = "namespace grown by the checkpoint and its snapshots"

# Growth.
GROWN_COMMIT = "1 KiB commit, files in the namespace"
GROWN_STAT = "stat, files in the namespace"
GROWN_LIST = "list of 10, files in the namespace"
GROWN_MEMORY = "agents' memory for each further file"
TURN_STATUS = "longest turn: status"
TURN_SUMMARY = "longest turn: summary of everything"
TURN_REPACK = "longest turn: choice of stripes to repack"
TURN_SNAPSHOT = "longest turn: chunk of a snapshot, given"
TURN_RESTORE = "longest turn: chunk of a snapshot, taken"
TURN_AGENT_DOWN = "longest turn: agent down, and the margin after it"
TURN_PLAN = "longest turn: repair plan"
TURN_WAVE = "longest turn: next stripe of a plan"
TURN_SWEEP = "longest turn: sweep of what was deleted"
TURN_REAP = "longest turn: 1000 stripes reaped"
TURNS_LOOP = "lag of the leader's loop, files in the namespace"


def turn_delete(path: str) -> str:
    return f"longest turn: recursive delete of {path}"


TURN = "longest turn: "
AGENTS_COMMIT = "1 KiB commit, agents"
AGENTS_WRITE = "64 MiB file, write, agents"
AGENTS_IDLE = "CPU while nothing works, agents"
STATE_CHECKPOINT = "checkpoint of a small batch, MB of state"
STATE_TRIGGER = "trigger of a small batch, MB of state"

IDENTITY_COMMIT = "commit by TCP, all processes"
IDENTITY_COMMIT_TLS = "commit by TCP with TLS, all processes"
IDENTITY_WRITE_MORE = "TLS adds to a MiB written by TCP, all processes"
IDENTITY_READ_MORE = "TLS adds to a MiB read by TCP, all processes"
IDENTITY_OPEN = "a connection by TCP, in the agent"
IDENTITY_OPEN_TLS = "a connection by TCP with TLS, in the agent"
