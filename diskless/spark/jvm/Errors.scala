package io.diskless.spark

import java.io.{FileNotFoundException, InterruptedIOException, IOException}

import org.apache.hadoop.fs.{
  FileAlreadyExistsException, ParentNotDirectoryException, PathIsNotEmptyDirectoryException}
import org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException
import org.apache.hadoop.security.AccessControlException

/** An agent's refusal, or that none could be asked. `reason` is a class of diskless.errors. */
class DisklessException(
    val reason: String, message: String, val retryable: Boolean, cause: Throwable = null)
    extends IOException(message, cause) {
  /** What a user sees of a failed query. */
  override def toString: String = s"${getClass.getName}: $reason: $getMessage"

  /** The same, with who it was in front. */
  def named(who: String): DisklessException =
    new DisklessException(reason, s"$who: $getMessage", retryable, this)
}

private[spark] object Errors {
  val AlreadyExists = "AlreadyExists"
  val CheckpointInUse = "CheckpointInUse"
  val Closing = "Closing"
  val CorruptData = "CorruptData"
  val DeadlineExceeded = "DeadlineExceeded"
  val DirectoryNotEmpty = "DirectoryNotEmpty"
  val Forbidden = "Forbidden"
  val Garbled = "Garbled"
  val NoCluster = "NoCluster"
  val MemoryFull = "MemoryFull"
  val NoQuorum = "NoQuorum"
  val NotDurable = "NotDurable"
  val NotFound = "NotFound"
  val NotLeader = "NotLeader"
  val PathIsDirectory = "PathIsDirectory"
  val PathIsFile = "PathIsFile"
  val ReadOnly = "ReadOnly"
  val Restored = "Restored"
  val SessionExpired = "SessionExpired"
  val ShardsAway = "ShardsAway"
  val TierBehind = "TierBehind"
  val Unauthorized = "Unauthorized"
  val Unavailable = "Unavailable"
  val UploadLost = "UploadLost"

  /** With these a healthy agent says that it cannot reach one that could help: another may. */
  val Hindrances: Set[String] =
    Set(Unavailable, NoQuorum, NotDurable, Closing, NotLeader, "AgentGone", "StoreDown")

  /** These say why the cluster cannot answer now; others only that it does not. */
  val Causes: Set[String] =
    Set(NoQuorum, ShardsAway, NotDurable, Closing, MemoryFull, CheckpointInUse)

  def unavailable(message: String, cause: Throwable = null): DisklessException =
    new DisklessException(Unavailable, message, retryable = true, cause)

  def unauthorized(message: String, retryable: Boolean = false, cause: Throwable = null)
      : DisklessException = new DisklessException(Unauthorized, message, retryable, cause)

  /** All that this JVM knew of the cluster may be gone. It is final: executors believe that files
    * exist which do not, and no retry brings them back. */
  def restored(cluster: String): DisklessException = new DisklessException(Restored,
    s"cluster $cluster was restored from its tier since this application began, and what it has " +
      "written last may be gone: restart the query, in a new application", retryable = false)

  /** A frame was damaged on its way. */
  def garbled(message: String): DisklessException =
    new DisklessException(Garbled, message, retryable = true)

  /** The interrupt stays visible; Spark takes this class for a clean stop. */
  def interrupted(what: String, cause: InterruptedException): InterruptedIOException = {
    Thread.currentThread().interrupt()
    val error = new InterruptedIOException(s"$what: interrupted")
    error.initCause(cause)
    error
  }

  /** Runs an operation with its refusals as the exceptions that Hadoop's contract names. */
  def asHadoop[T](operation: => T): T =
    try operation
    catch { case error: DisklessException => throw toHadoop(error) }

  private def toHadoop(error: DisklessException): IOException = {
    val message = error.getMessage
    val translated = error.reason match {
      case NotFound => new FileNotFoundException(message)
      case AlreadyExists | PathIsDirectory => new FileAlreadyExistsException(message)
      case PathIsFile => new ParentNotDirectoryException(message)
      case DirectoryNotEmpty => new PathIsNotEmptyDirectoryException(message)
      case Forbidden | Unauthorized => new AccessControlException(message)
      case ReadOnly => new SnapshotAccessControlException(message)
      case _ => return error
    }
    translated.initCause(error)
    translated
  }
}
