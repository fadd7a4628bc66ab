"""The words for what is measured, and on what: one spelling for what measures and what judges."""

# Systems.
DISK = "disk"
DISK_FSYNC = "disk, fsync"
TMPFS = "tmpfs"
REDIS = "redis, 2 replicas"
PLAIN = "plain gRPC"
ISAL = "ISA-L alone"
MEMCPY = "memcpy"
ALL = "all"
LIBRARY = "obstore alone"

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


def cpu(work: str) -> str:
    """What that work takes of the CPU, in the client and all servers."""
    return f"{work}: CPU of all processes"


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
GROWN_COMMIT_CPU = cpu(GROWN_COMMIT)
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
AGENTS_COMMIT_CPU = cpu(AGENTS_COMMIT)
AGENTS_WRITE_CPU = cpu(AGENTS_WRITE)
AGENTS_IDLE = "CPU while nothing works, agents"
STATE_CHECKPOINT = "checkpoint of a small batch, MB of state"
STATE_TRIGGER = "trigger of a small batch, MB of state"

# Scale: what the leader of many does, simulated; the size is how many agents, or clients.
SIMULATED = "leader, simulated"
SCALE_IDLE = "idle agents, CPU of their leader"
SCALE_IDLE_EACH = "idle agents, CPU of their leader for each"
SCALE_IDLE_MESSAGES = "idle agents, messages of their leader"
SCALE_CHANGE = "a change of the roster, told to agents"
SCALE_CHANGE_BYTES = "a change of the roster, bytes for agents"
SCALE_REPORT = "a report on agents"
SCALE_PLACE = "places of a stripe chosen among agents"
SCALE_LOST = "while an agent is lost and repaired, CPU of the leader, agents"
SCALE_LOST_MESSAGES = "an agent lost and repaired, messages of the leader, agents"
SCALE_ARRIVAL = "a client arrives, of clients"
SCALE_CLIENTS_IDLE = "idle clients, CPU of the leader"
SCALE_COMMIT = "1 KiB commit, CPU of the leader, clients"
SCALE_COMMIT_MESSAGES = "messages of the leader for a commit, clients"
SCALE_COMMITS_MOST = "1 KiB commits that one leader can do, clients"
SCALE_OPEN = "small file opened, CPU of the leader, clients"
SCALE_SOCKET = "a message by a socket, one end of it"

ROLLBACK_S = "rollback of a query to any of its batches"
ROLLBACK_BYTES = "stored by rollbacks of a query"
ROLLBACK_RESTART = "restart of a query after a rollback"
ROLLBACK_PLAIN_RESTART = "restart of a query"
ROLLBACK_LEASED = "commit of a query with a lease, all processes"
ROLLBACK_UNLEASED = "commit of a query without one, all processes"
IDENTITY_COMMIT = "commit by TCP, all processes"
IDENTITY_COMMIT_TLS = "commit by TCP with TLS, all processes"
IDENTITY_WRITE_MORE = "TLS adds to a MiB written by TCP, all processes"
IDENTITY_READ_MORE = "TLS adds to a MiB read by TCP, all processes"
IDENTITY_OPEN = "a connection by TCP, in the agent"
IDENTITY_OPEN_TLS = "a connection by TCP with TLS, in the agent"

# The durable tier; `place` is what it is kept in, "none" of no tier.
TIER_WRITE = "bulk write without a tier"
TIER_LIBRARY = "8 MiB objects put to S3 by the library alone"
TIER_RESTART_WARM = "query restarted on a healthy cluster with a tier"
TIER_RESTART_COLD = "query restarted after a cold start from its tier"
TIER_FIRST_BYTE = "first byte after a cold start, from when agents serve"


def tier_sync(place: str) -> str:
    return f"1 KiB commit, sync, {place}"


def tier_sync_least(place: str) -> str:
    return f"1 KiB commit and one conditional create, {place}"


def tier_drain(place: str) -> str:
    return f"bulk brought to the tier, {place}"


def tier_written(place: str) -> str:
    return f"bulk write until it is in the tier, {place}"


def tier_batch(place: str) -> str:
    return f"batch of the query, all processes, tier {place}"


def tier_trigger(place: str) -> str:
    return f"trigger of the query, tier {place}"


def tier_checkpoint(place: str) -> str:
    return f"checkpoint of the query, tier {place}"


def tier_lag(place: str) -> str:
    return f"lag of the tier under the query, p99, {place}"


def tier_requests(place: str) -> str:
    return f"requests for each file of Spark, 50 partitions, {place}"


def tier_many_trigger(place: str) -> str:
    return f"trigger of that query, 50 partitions, {place}"


# Exactly-once past the loss of everything.
FILE_TIER = "file tier"
OBJECT_TIER = "object store"
ASYNC_TRIGGER = "trigger of a stream, durability=async"
BARRIER_TRIGGER = "trigger of a stream, durability=barrier"
ASYNC_CPU = "agents' CPU for a batch, durability=async"
BARRIER_CPU = "agents' CPU for a batch, durability=barrier"
EVICTION_MEMORY = "checkpoint of 100 batches in memory, all kept"
EVICTION_MEMORY_KEPT = "checkpoint of 100 batches in memory, the newest two kept"
EVICTION_RESTART = "what a restart reads, all kept"
EVICTION_RESTART_KEPT = "what a restart reads, the newest two kept"
EVICTION_READ = "64 MiB evicted file, read"
EVICTION_LIBRARY = "64 MiB object, read by the library alone"
EVICTION_DRAIN = "bulk written until it is in the tier, memory for all of it"
EVICTION_BULK = "bulk written until it is in the tier, memory for a part of it"

# What can be seen, and what that costs.
SEEN_COMMIT = "commit with no metrics and no page, all processes"
SEEN_COMMIT_SHOWN = "commit with metrics, scraped every second, and the page, all processes"
SEEN_IDLE_MORE = "metrics and page add to an idle agent, part of a core"
SEEN_SCRAPE = "a scrape of the leader, in the agent"
SEEN_KILL = "SIGKILL of an agent to its being shown on a stream"
SEEN_KILL_SHOWN = "SIGKILL of an agent to its being shown in a browser, under a Spark stream"
SEEN_BATCH = "batch of a small stateful query without the listener, all processes"
SEEN_BATCH_NOTED = "batch of a small stateful query with the listener, all processes"
SEEN_WATCHERS = "100 watching streams, all agents, part of a core"
SEEN_FIRST_VIEW = "first view of the page"
SEEN_NOTE = "a note of a batch, all processes"
