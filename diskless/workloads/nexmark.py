"""Nexmark's auctions: query 4, and the auctions with more than ten bids, as two streams.

An auction and a bid are numbers, and everything about them follows from the number; so both
streams can be repeated from any offset, and `answer` is a batch job over the same numbers.
Query 4 is the average, by category, of the highest bid that came while an auction was open.
Nexmark asks for it over all time; here it is asked for each round of ROUND_S in which auctions
opened, because only a result that is final can be compared. Sums and counts stand for the
average, so that no rounding blurs it. Results go to files (Spark's exactly-once sink).

    spark-submit --properties-file spark.conf nexmark.py diskless:///nexmark
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from diskless.workloads.progress import follow

BIDS_PER_AUCTION = 15
"""As in Nexmark: of 50 events 46 are bids and 3 are auctions."""
BEGIN_S = 1_577_836_800
"""2020-01-01: a watermark begins at 1970, and what happened then would be late."""
BID_MS = 10
"""Event time between two bids."""
LIFE_S_MAX = 20
"""An auction is open for 1 s to this long."""
ROUND_S = 10
RECENT = 60
"""A bid goes to one of so many auctions that opened last, open or not."""
HOT_RATIO = 10
"""Every so manieth auction is hot, and gets half of all bids."""
CATEGORIES = 5
PRICE_MAX = 10_000_000
BUSY_BIDS = 10
"""An auction with more bids than this is listed."""

Q4 = "round_end_s long, category long, total long, auctions long"
BUSY = "round_end_s long, auction long, bids long"

Rows = list[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Nexmark:
    bids_per_batch: int = 1_500

    @property
    def batch_s(self) -> float:
        """Event time in one batch."""
        return self.bids_per_batch * BID_MS / 1000

    def start(self, spark: SparkSession, root: str) -> list[StreamingQuery]:
        """Both queries, with their checkpoints and results under `root`."""
        auctions_per_batch = self.bids_per_batch // BIDS_PER_AUCTION
        frames = {
            name: make(
                winning_bids(
                    auctions(_rows(spark, auctions_per_batch)),
                    bids(_rows(spark, self.bids_per_batch)),
                )
            )
            for name, make in QUERIES.items()
        }
        return [
            frame.writeStream.outputMode("append")
            .format("json")
            .option("path", f"{root}/{name}")
            .option("checkpointLocation", f"{root}/checkpoint-{name}")
            .queryName(f"nexmark-{name}")
            .start()
            for name, frame in frames.items()
        ]

    def problems(self, spark: SparkSession, root: str, last: Sequence[int]) -> list[str]:
        """What is wrong with the results; nothing if each final row is there once.

        `last` are the last batches that were seen committed, of each query.
        """
        found = []
        for (name, make), batch in zip(QUERIES.items(), last, strict=True):
            seen = self.results(spark, root, name)
            through_s = max((row[0] for row in seen), default=0)
            due_s = (batch + 1) * self.batch_s - self.lag_s
            if through_s < due_s:
                found.append(f"{name}: rounds until {through_s} s, not {due_s:g} s, were given")
            expected = self.answer(spark, make, through_s)
            if seen != expected:
                lost, extra = _difference(expected, seen), _difference(seen, expected)
                found.append(
                    f"{name}: {len(lost)} rows lost, {len(extra)} too many or wrong, "
                    f"of {len(expected)}: {(lost + extra)[:3]}"
                )
        return found

    @property
    def lag_s(self) -> float:
        """How far behind the newest bid a round may be given: the watermark is a batch late
        and waits for auctions to close, in the join and after it; rounds end in between."""
        return 2 * self.batch_s + 2 * LIFE_S_MAX + 2 * ROUND_S

    def results(self, spark: SparkSession, root: str, name: str) -> Rows:
        """What a query has given so far."""
        frame = spark.read.schema(SCHEMAS[name]).json(f"{root}/{name}")
        return sorted(tuple(row) for row in frame.collect())

    def answer(self, spark: SparkSession, make: Any, through_s: int) -> Rows:
        """The rows of all rounds until then, by a batch job."""
        count = (through_s + LIFE_S_MAX) * 1000 // BID_MS + 1
        frame = make(
            winning_bids(
                auctions(_range(spark, count // BIDS_PER_AUCTION + 1)), bids(_range(spark, count))
            )
        )
        return sorted(tuple(row) for row in frame.where(f"round_end_s <= {through_s}").collect())


def auctions(rows: DataFrame) -> DataFrame:
    opened_ms = f.col("value") * BIDS_PER_AUCTION * BID_MS
    open_ms = 1000 + f.pmod(f.xxhash64("value", f.lit("life")), f.lit(1000 * (LIFE_S_MAX - 1)))
    return rows.select(
        f.col("value").alias("auction"),
        (10 + f.pmod(f.xxhash64("value", f.lit("category")), f.lit(CATEGORIES))).alias("category"),
        _at(opened_ms).alias("opened"),
        _at(opened_ms + open_ms).alias("expires"),
    ).withWatermark("opened", f"{LIFE_S_MAX} seconds")


def bids(rows: DataFrame) -> DataFrame:
    newest = f.floor(f.col("value") / BIDS_PER_AUCTION)
    recent = newest - f.pmod(f.xxhash64("value", f.lit("auction")), f.lit(RECENT))
    hot = f.floor(newest / HOT_RATIO) * HOT_RATIO
    is_hot = f.pmod(f.xxhash64("value", f.lit("hot")), f.lit(2)) == 0
    return rows.select(
        f.greatest(f.when(is_hot, hot).otherwise(recent), f.lit(0)).alias("bid_on"),
        f.pmod(f.xxhash64("value", f.lit("price")), f.lit(PRICE_MAX)).alias("price"),
        _at(f.col("value") * BID_MS).alias("bid_at"),
    ).withWatermark("bid_at", "0 seconds")


def winning_bids(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Each auction's highest bid and number of bids, in the round in which it opened."""
    in_time = f.expr(
        "auction = bid_on AND bid_at >= opened AND bid_at <= expires "
        f"AND bid_at <= opened + INTERVAL {LIFE_S_MAX} SECONDS"
    )
    return (
        auctions.join(bids, in_time)
        .select("opened", "auction", "category", "price")
        .groupBy(f.window("opened", f"{ROUND_S} seconds"), "auction", "category")
        .agg(f.max("price").alias("final"), f.count("*").alias("bids"))
    )


def query_4(winning: DataFrame) -> DataFrame:
    return (
        winning.groupBy(f.window(f.window_time("window"), f"{ROUND_S} seconds"), "category")
        .agg(f.sum("final").alias("total"), f.count("*").alias("auctions"))
        .select(_round_end(), "category", "total", "auctions")
    )


def busy_auctions(winning: DataFrame) -> DataFrame:
    return winning.where(f.col("bids") > BUSY_BIDS).select(_round_end(), "auction", "bids")


def _round_end() -> Any:
    return (f.unix_seconds(f.col("window.end")) - BEGIN_S).alias("round_end_s")


def _at(ms: Any) -> Any:
    return f.timestamp_millis(f.lit(BEGIN_S * 1000) + ms)


QUERIES = {"q4": query_4, "busy": busy_auctions}
SCHEMAS = {"q4": Q4, "busy": BUSY}


def _rows(spark: SparkSession, per_batch: int) -> DataFrame:
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", per_batch)
        .option("numPartitions", 2)
        .load()
    )


def _range(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).withColumnRenamed("id", "value")


def _difference(left: Rows, right: Rows) -> Rows:
    """The rows of `left` that `right` lacks; one that is there too often counts too."""
    rest = list(right)
    missing = []
    for row in left:
        if row in rest:
            rest.remove(row)
        else:
            missing.append(row)
    return missing


@click.command()
@click.argument("root")
@click.option("--batches", default=20, show_default=True, help="Commit so many, and stop.")
@click.option("--bids", default=Nexmark.bids_per_batch, show_default=True, help="Bids a batch.")
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds at most.")
def main(root: str, batches: int, bids: int, timeout_s: float) -> None:
    """Run both queries with checkpoints and results under ROOT, and compare with a batch job.

    A second run with the same ROOT continues where the first one stopped. Exits with 1 if a
    single row differs.
    """
    spark = SparkSession.builder.appName("diskless nexmark").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    work = Nexmark(bids_per_batch=bids)
    last = [
        follow(query, more=batches, timeout_s=timeout_s, each=lambda _: None)
        for query in work.start(spark, root)
    ]
    problems = work.problems(spark, root, last)
    spark.stop()
    for problem in problems:
        print(problem)
    print(
        f"{max(last) + 1} batches: {'DIFFERENT FROM' if problems else 'equal to'} the batch answer"
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
