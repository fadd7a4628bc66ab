package io.diskless.spark

import java.util.EnumSet

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  CommonPathCapabilities, CreateFlag, FSDataOutputStream, Path, UnsupportedFileSystemException}
import org.apache.spark.sql.execution.streaming.checkpointing.{
  AbstractFileContextBasedCheckpointFileManager, CheckpointFileManager}

/** Makes the calls of AbortableStreamBasedCheckpointFileManager in spark-hadoop-cloud, which pip's
  * pyspark does not bring: writes to the final name, and aborts what shall not appear.
  *
  * Like Spark's, `close` keeps every error to itself. So a commit is refused in a way that Spark
  * notices only when it is created.
  */
final class AbortableManager(path: Path, conf: Configuration)
    extends AbstractFileContextBasedCheckpointFileManager(path, conf) {
  if (!fc.hasPathCapability(path, CommonPathCapabilities.ABORTABLE_STREAM)) {
    throw new UnsupportedFileSystemException(s"$path: streams cannot be aborted")
  }

  /** What the last `close` kept to itself. */
  @volatile var swallowed: Option[Throwable] = None

  override def createAtomic(target: Path, overwriteIfPossible: Boolean)
      : CheckpointFileManager.CancellableFSDataOutputStream = {
    val flags = EnumSet.of(CreateFlag.CREATE)
    if (overwriteIfPossible) flags.add(CreateFlag.OVERWRITE)
    new Stream(fc.create(target, flags), target, overwriteIfPossible)
  }

  private final class Stream(out: FSDataOutputStream, target: Path, overwrite: Boolean)
      extends CheckpointFileManager.CancellableFSDataOutputStream(out) {
    private var ended = false

    override def cancel(): Unit = end {
      out.abort()
      out.close()
    }

    override def close(): Unit = end {
      if (!overwrite && fc.util.exists(target)) {
        out.abort()
        throw new java.nio.file.FileAlreadyExistsException(target.toString)
      }
      out.close()
    }

    private def end(work: => Unit): Unit = synchronized {
      if (!ended) {
        try work
        catch { case NonFatal(error) => swallowed = Some(error) }
        finally ended = true
      }
    }
  }
}
