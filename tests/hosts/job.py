"""The stream under test, run by spark-submit on one of the hosts.

Counts words until the file STOP exists, and then compares with a batch job. Says what it does
in lines of JSON: `{"batch": n, "executors": [...]}` for each committed batch, and last
`{"equal": true, "batches": n}`.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from diskless.workloads.wordcount import WordCount

POLL_S = 0.1
WORK = WordCount(rows_per_batch=1_000, vocabulary=5_000)


def main(checkpoint: str, stop: Path, timeout_s: float) -> None:
    spark = SparkSession.builder.appName("diskless hosts").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    query = WORK.start(spark, checkpoint)
    end_s = time.monotonic() + timeout_s
    last = -1
    while not stop.exists():
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                say(batch=last, executors=executors(spark))
        if not query.isActive:
            query.awaitTermination()  # raises what it failed with
        if time.monotonic() > end_s:
            raise TimeoutError(f"nobody said stop within {timeout_s:g} s")
        time.sleep(POLL_S)
    query.stop()
    counted = WORK.counted(spark)
    last = max([last, *(progress["batchId"] for progress in query.recentProgress)])
    say(equal=WORK.equals_answer(spark, counted, last), batches=last + 1)
    spark.stop()


def executors(spark: SparkSession) -> list[str]:
    """The hosts that run one now, and the driver's."""
    found = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sorted({one.host() for one in found})


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
