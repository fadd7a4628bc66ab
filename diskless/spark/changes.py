"""What changed in a query's state between two batches, as a DataFrame of Spark.

Read through Spark's own `statestore` source, in a session of its own: that source takes some of
the state's format from the session, and the caller's is not to be touched.
"""

from typing import TYPE_CHECKING

from diskless.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDED, CHANGED, REMOVED = "added", "changed", "removed"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_IDS = '"stateUniqueIds"'


def changes(
    spark: "SparkSession",
    path: str,
    n: int,
    m: int,
    *,
    operator: int = 0,
    join_side: str = "",
    variable: str = "",
) -> "DataFrame":
    """The rows of the state that are other after batch `m` than they were after batch `n`: columns
    `change` (added, changed or removed), `key`, `old` and `new`.

    `path` is a checkpoint, or one below `.snapshot`. `operator` is the number of a stateful
    operator, `join_side` left or right for a join of streams, `variable` a state variable of
    transformWithState. What has no unique key, as in joins, is only added or removed. Raises
    BadRequest; what Spark says if the state of one of the batches is gone.
    """
    from pyspark.sql import functions as f

    if n < 0 or m < 0:
        raise BadRequest(f"batches {n} and {m}: they are numbered from 0")
    options = {"operatorId": str(operator)}
    options |= {"joinSide": join_side} if join_side else {}
    options |= {"stateVarName": variable} if variable else {}
    at = path if "://" in path else f"diskless://{path}"
    before = _state(spark, at, n, options)
    after = _state(spark, at, m, options)
    if join_side:
        return _as_multisets(before, after)
    old = before.select(f.col("key").alias("old_key"), f.col("value").alias("old"))
    new = after.select(f.col("key").alias("new_key"), f.col("value").alias("new"))
    both = old.join(new, f.col("old_key").eqNullSafe(f.col("new_key")), "full_outer")
    kind = (
        f.when(f.col("old_key").isNull(), ADDED)
        .when(f.col("new_key").isNull(), REMOVED)
        .otherwise(CHANGED)
    )
    key = f.coalesce("new_key", "old_key")
    found = both.select(kind.alias("change"), key.alias("key"), "old", "new")
    return found.where(~f.col("old").eqNullSafe(f.col("new")))


def corrections(found: "DataFrame") -> "DataFrame":
    """Changes as records with a sign, columns `sign`, `key` and `value`: -1 takes an old row back,
    +1 gives a new one. Their sum, added downstream, makes of the one state the other."""
    from pyspark.sql import functions as f

    old = found.where("old IS NOT NULL").select(
        f.lit(-1).alias("sign"), "key", f.col("old").alias("value")
    )
    new = found.where("new IS NOT NULL").select(
        f.lit(1).alias("sign"), "key", f.col("new").alias("value")
    )
    return old.unionByName(new)


def _as_multisets(before: "DataFrame", after: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    rows_before, rows_after = before.select("key", "value"), after.select("key", "value")
    nothing = f.lit(None).cast(before.schema["value"].dataType)
    gone = rows_before.exceptAll(rows_after).select(
        f.lit(REMOVED).alias("change"), "key", f.col("value").alias("old"), nothing.alias("new")
    )
    come = rows_after.exceptAll(rows_before).select(
        f.lit(ADDED).alias("change"), "key", nothing.alias("old"), f.col("value").alias("new")
    )
    return gone.unionByName(come)


def _state(spark: "SparkSession", path: str, batch: int, options: dict[str, str]) -> "DataFrame":
    session = spark.newSession()
    lines = session.read.text(f"{path}/commits/{batch}").collect()
    second = any(_IDS in line[0] for line in lines)
    session.conf.set(_FORMAT, "2" if second else "1")
    reader = session.read.format("statestore").options(**options)
    return reader.option("batchId", str(batch)).load(path)
