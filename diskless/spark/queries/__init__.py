"""The queries of a cluster, by their checkpoints: their batches, and ways back. Without Spark.

    with diskless.connect() as client:
        for found in queries.ls(client):
            print(found.path, found.last_batch)
        queries.rollback(client, {"/checkpoints/q1": 12})

A checkpoint is pictured at one moment (`access`) and judged by Spark's rules
(`diskless.checkpoint`).
"""

from diskless.checkpoint.facts import Batch, Query
from diskless.errors import CannotReturn, UnknownFormat
from diskless.spark.queries.repartition import Repartitioned, repartition
from diskless.spark.queries.rollback import (
    Cloned,
    CutMember,
    Part,
    Returned,
    clone,
    cut,
    cut_back,
    rollback,
)
from diskless.spark.queries.show import Shown, ls, show
from diskless.spark.queries.trace import Touched, Traced, trace

__all__ = [
    "Batch",
    "CannotReturn",
    "Cloned",
    "CutMember",
    "Part",
    "Query",
    "Repartitioned",
    "Returned",
    "Shown",
    "Touched",
    "Traced",
    "UnknownFormat",
    "clone",
    "cut",
    "cut_back",
    "ls",
    "repartition",
    "rollback",
    "show",
    "trace",
]
