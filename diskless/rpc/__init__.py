"""gRPC between agents: the only place that imports grpc."""

import os

# Agents die and return as a matter of course; gRPC's own log would tell of each.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# A forked child never speaks gRPC; restarting its threads there has crashed children.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
