"""Run by test_executors.py: everything through executors in JVMs of their own."""

import sys

from pyspark.sql import SparkSession

import diskless.spark

STATES = "org.apache.spark.sql.execution.streaming.state."
PROVIDER = STATES + "RocksDBStateStoreProvider"


def main(cluster: str) -> None:
    builder = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    )
    spark = diskless.spark.configure(builder, cluster).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    spark.range(10_000).write.parquet("diskless:///table")
    assert spark.read.parquet("diskless:///table").count() == 10_000

    spark.sparkContext.setCheckpointDir("diskless:///rdds")
    numbers = spark.sparkContext.parallelize(range(1000), 4)
    numbers.checkpoint()
    assert numbers.sum() == 499_500
    assert numbers.isCheckpointed()
    assert numbers.sum() == 499_500

    stream = spark.readStream.schema("id long").parquet("diskless:///table")
    query = (
        stream.groupBy((stream.id % 10).alias("key"))
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", "diskless:///stream")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counts = {row["key"]: row["count"] for row in spark.table("counts").collect()}
    assert counts == dict.fromkeys(range(10), 1000), counts
    spark.stop()
    print("executors: all is well")


if __name__ == "__main__":
    main(sys.argv[1])
