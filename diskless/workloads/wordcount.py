"""Word count over text that makes itself: the same rows give the same words, always.

A row is a number, and its text follows from it; so the stream can be repeated from any
offset, and `answer` counts the same rows as a batch, without any state or checkpoint.

    spark-submit --properties-file spark.conf wordcount.py diskless:///checkpoints/words
"""

import sys
from dataclasses import dataclass

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from diskless.workloads.progress import Progress, checkpoint_ms, follow

RESULT = "wordcount"
"""The in-memory table with the stream's counts; empty again in a new session."""

Counts = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class WordCount:
    rows_per_batch: int = 5_000
    words_per_row: int = 8
    vocabulary: int = 20_000

    def start(self, spark: SparkSession, checkpoint: str) -> StreamingQuery:
        """Counts without end, a batch as soon as the last one is committed."""
        rows = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", self.rows_per_batch)
            .option("numPartitions", 2)
            .load()
        )
        return (
            self._count(rows)
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName(RESULT)
            .option("checkpointLocation", checkpoint)
            .start()
        )

    def counted(self, spark: SparkSession) -> Counts:
        """What the stream has counted, as of its last batch."""
        return _as_dict(spark.table(RESULT))

    def equals_answer(self, spark: SparkSession, counted: Counts, last: int) -> bool:
        """Whether the stream counted every row of its batches once.

        `last` is the last batch that was seen committed. A stopped query may have shown one
        more, which its checkpoint repeats when it is started again.
        """
        words_per_batch = self.rows_per_batch * self.words_per_row
        batches = sum(counted.values()) // words_per_batch
        return batches in (last + 1, last + 2) and counted == self.answer(spark, batches)

    def answer(self, spark: SparkSession, batches: int) -> Counts:
        """The counts over so many batches' rows, by a batch job."""
        rows = spark.range(batches * self.rows_per_batch).withColumnRenamed("id", "value")
        return _as_dict(self._count(rows))

    def _count(self, rows: DataFrame) -> DataFrame:
        position = f.explode(f.sequence(f.lit(1), f.lit(self.words_per_row))).alias("position")
        number = f.pmod(f.xxhash64("value", "position"), f.lit(self.vocabulary))
        # Squared, so that some words are frequent and most are rare, as in a language.
        rank = (number * number / f.lit(self.vocabulary)).cast("long")
        word = f.format_string("word-%d", rank).alias("word")
        return rows.select("value", position).select(word).groupBy("word").count()


def _as_dict(counts: DataFrame) -> Counts:
    return {row["word"]: row["count"] for row in counts.collect()}


@click.command()
@click.argument("checkpoint")
@click.option("--batches", default=20, show_default=True, help="Commit so many, and stop.")
@click.option("--rows", default=WordCount.rows_per_batch, show_default=True, help="Rows a batch.")
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds at most.")
def main(checkpoint: str, batches: int, rows: int, timeout_s: float) -> None:
    """Count words with the checkpoint at CHECKPOINT, and compare with the batch answer.

    A second run with the same CHECKPOINT continues where the first one stopped. Exits with 1
    if a single count differs.
    """
    spark = SparkSession.builder.appName("diskless wordcount").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    work = WordCount(rows_per_batch=rows)
    last = follow(
        work.start(spark, checkpoint),
        more=batches,
        timeout_s=timeout_s,
        each=lambda progress: print(_line(progress), flush=True),
    )
    same = work.equals_answer(spark, work.counted(spark), last)
    spark.stop()
    print(f"{last + 1} batches: {'equal to' if same else 'DIFFERENT FROM'} the batch answer")
    sys.exit(0 if same else 1)


def _line(progress: Progress) -> str:
    return (
        f"batch {progress['batchId']:3}  {progress['numInputRows']:6} rows  "
        f"{progress['durationMs']['triggerExecution']:5} ms  "
        f"checkpoint {checkpoint_ms(progress):4.0f} ms"
    )


if __name__ == "__main__":
    main()
