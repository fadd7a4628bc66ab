"""`diskless jar`."""

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.spark.jar import jar


@verb(
    "jar",
    examples=("diskless jar", "spark-submit --jars $(diskless jar) job.py"),
    statuses=(exits.SPARK_UNUSABLE,),
    through_client=False,
)
def command(context: Context) -> None:
    """Print the path of the jar for Spark, which is compiled here the first time.

    It is made for the pyspark that is installed beside diskless.
    """
    path = str(jar(report=context.warn))
    context.say(path)
    context.result({"jar": path})
