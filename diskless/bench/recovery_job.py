"""The word count of `diskless bench recovery-table`, run by spark-submit on one of the hosts.

    recovery_job.py CHECKPOINT ROWS VOCABULARY STOP

Counts the words of ROWS rows in one batch, and then those of a few rows in one batch after the
other until the file STOP exists. Says what it does in lines of JSON: `{"built": true, …}`, and a
line for each batch after that.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

WORDS_PER_ROW = 8
WORD_CHARS = 10
ROWS_AFTER = 100
POLL_S = 0.05
BUILD_TIMEOUT_S = 1800.0
ONE_BATCH_ONLY = "1 hour"
"""Between triggers, the first of which is at once."""


def main(checkpoint: str, rows: int, vocabulary: int, stop: Path) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("diskless recovery-table").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    query = _start(spark, checkpoint, rows, vocabulary, ONE_BATCH_ONLY)
    end_s = time.monotonic() + BUILD_TIMEOUT_S
    while not query.recentProgress:
        _check(query)
        if time.monotonic() > end_s:
            raise TimeoutError(f"the first batch was not committed in {BUILD_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
    _say(built=True, **_about(spark, query.recentProgress[0].json))
    query.stop()
    query = _start(spark, checkpoint, ROWS_AFTER, vocabulary, "0 seconds")
    last = -1
    while not stop.exists():
        _check(query)
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                _say(**_about(spark, progress.json))
        time.sleep(POLL_S)
    query.stop()
    spark.stop()


def _start(
    spark: "SparkSession", checkpoint: str, rows: int, vocabulary: int, trigger: str
) -> "StreamingQuery":
    from pyspark.sql import functions as f

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    lines = source.option("numPartitions", 2).load()
    position = f.explode(f.sequence(f.lit(1), f.lit(WORDS_PER_ROW))).alias("position")
    number = f.pmod(f.xxhash64("value", "position"), f.lit(vocabulary)).cast("string")
    words = lines.select("value", position).select(f.lpad(number, WORD_CHARS, "0").alias("word"))
    return (
        words.groupBy("word")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )


def _check(query: "StreamingQuery") -> None:
    if not query.isActive:
        query.awaitTermination()  # raises what it failed with


def _about(spark: "SparkSession", text: str) -> dict[str, Any]:
    """Of a batch's progress, as Spark writes it."""
    progress = json.loads(text)
    (operator,) = progress["stateOperators"]
    return {
        "batch": progress["batchId"],
        "told_s": time.time(),
        "state_rows": operator["numRowsTotal"],
        "state_file_bytes": operator["customMetrics"].get("rocksdbSstFileSize", 0),
        "executors": _executors(spark),
    }


def _executors(spark: "SparkSession") -> list[str]:
    """Hosts and ports: another process has another port. The driver is among them."""
    known: str = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ")
    return sorted(known.split())


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
