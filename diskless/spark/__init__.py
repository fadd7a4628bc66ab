"""`diskless://` in Spark.

spark = diskless.spark.configure(SparkSession.builder).getOrCreate()
df.writeStream.option("checkpointLocation", "diskless:///checkpoints/q1")
"""

from diskless.spark.changes import changes, corrections
from diskless.spark.conf import configure, properties
from diskless.spark.jar import jar

__all__ = ["changes", "configure", "corrections", "jar", "properties"]
