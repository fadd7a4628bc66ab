package io.diskless.spark

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, FileSystem, FSDataInputStream, Path, PathFilter}
import org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

/** Spark's access to checkpoints: a file is one command at its close, with no temporary name.
  *
  * Spark asks one class for all checkpoints of a session, and for the logs of file sinks. So
  * paths outside of diskless get the manager that Spark would have chosen itself.
  */
class DisklessCheckpointFileManager(path: Path, conf: Configuration)
    extends CheckpointFileManager {
  import CheckpointFileManager.CancellableFSDataOutputStream

  private val manager: CheckpointFileManager = {
    val scheme = Option(path.toUri.getScheme).getOrElse(FileSystem.getDefaultUri(conf).getScheme)
    if (scheme == Descriptor.Scheme) new AtomicFiles(path, conf)
    else {
      val plain = new Configuration(conf)
      plain.unset(DisklessCheckpointFileManager.Key)
      CheckpointFileManager.create(path, plain)
    }
  }

  override def createAtomic(
      path: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream =
    manager.createAtomic(path, overwriteIfPossible)

  override def open(path: Path): FSDataInputStream = manager.open(path)

  override def list(path: Path, filter: PathFilter): Array[FileStatus] =
    manager.list(path, filter)

  override def mkdirs(path: Path): Unit = manager.mkdirs(path)

  override def exists(path: Path): Boolean = manager.exists(path)

  override def delete(path: Path): Unit = manager.delete(path)

  override def isLocal: Boolean = manager.isLocal

  override def createCheckpointDirectory(): Path = manager.createCheckpointDirectory()

  override def close(): Unit = manager.close()
}

private[spark] object DisklessCheckpointFileManager {
  private val Key = "spark.sql.streaming.checkpointFileManagerClass"
}

/** Checkpoint files in diskless. */
private[spark] final class AtomicFiles(path: Path, conf: Configuration)
    extends CheckpointFileManager {
  import CheckpointFileManager.CancellableFSDataOutputStream

  private val files = path.getFileSystem(conf).asInstanceOf[DisklessFileSystem]
  if (path.getName == AtomicFiles.Offsets && path.getParent != null) files.watch(path)

  /** Throws FileAlreadyExistsException on closing, if it may not replace what is there. */
  override def createAtomic(
      path: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream = {
    val stream = files.createAtomic(path, overwriteIfPossible)
    new CancellableFSDataOutputStream(stream) {
      override def cancel(): Unit = stream.abort()
    }
  }

  override def open(path: Path): FSDataInputStream = files.open(path)

  override def list(path: Path, filter: PathFilter): Array[FileStatus] =
    files.listStatus(path, filter)

  /** Below `.snapshot` too, what is there need not be made: not every version of Spark knows
    * that it only reads a state when it asks for the state's directory. */
  override def mkdirs(path: Path): Unit =
    try files.mkdirs(path)
    catch {
      case refused: SnapshotAccessControlException =>
        if (!files.exists(path) || files.getFileStatus(path).isFile) throw refused
    }

  override def exists(path: Path): Boolean = files.exists(path)

  override def delete(path: Path): Unit = files.delete(path, true)

  override def isLocal: Boolean = false

  /** Refused below `.snapshot`, even for a directory that is there: who asks means to write. */
  override def createCheckpointDirectory(): Path = {
    val qualified = files.makeQualified(path)
    files.mkdirs(qualified)
    qualified
  }
}

private[spark] object AtomicFiles {
  /** The log that every query opens, and that tells where its checkpoint is. */
  private val Offsets = "offsets"
}
