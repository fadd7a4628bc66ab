package io.diskless.spark

import java.net.URI

import org.apache.hadoop.fs.{BlockLocation, FileStatus, FsServerDefaults, Path}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.security.UserGroupInformation
import org.apache.hadoop.util.DataChecksum

/** How a cluster looks through Hadoop's eyes: paths, statuses, blocks. */
private[spark] final class Layout(val uri: URI, store: Store) {
  import Layout._

  private lazy val user = UserGroupInformation.getCurrentUser.getShortUserName

  def toHadoop(path: String): Path = new Path(uri.getScheme, uri.getAuthority, path)

  /** Nothing is unquoted: a name may hold any character. */
  def toDiskless(path: Path): String = path.toUri.getPath match {
    case "" => "/"
    case absolute => absolute
  }

  def toHadoop(status: Status): FileStatus = {
    val permission =
      if (status.directory) FsPermission.getDirDefault else FsPermission.getFileDefault
    val (replication, blockBytes) = if (status.directory) (0, 0L) else (1, BlockBytes)
    new FileStatus(status.size, status.directory, replication, blockBytes, status.mtimeMs,
      status.mtimeMs, permission, user, user, toHadoop(status.path))
  }

  /** For each block that [start, start + length) touches, the hosts with most of its bytes.
    *
    * A file that is inline in the namespace is as near to any host as to any other.
    */
  def locate(status: FileStatus, start: Long, length: Long): Array[BlockLocation] =
    if (status.isDirectory || start >= status.getLen || length <= 0) Array.empty
    else {
      val placed = store.places(toDiskless(status.getPath))
      val end = math.min(start + length, status.getLen)
      (start / BlockBytes to (end - 1) / BlockBytes).map { block =>
        val from = block * BlockBytes
        val to = math.min(from + BlockBytes, status.getLen)
        val hosts = nearest(placed.filter(p => p.start < to && p.start + p.length > from))
        new BlockLocation(hosts, hosts, from, to - from)
      }.toArray
    }

  private def nearest(placed: Vector[Store.Placed]): Array[String] =
    if (placed.isEmpty) store.hosts.toArray
    else {
      val held = placed.flatMap(p => p.hosts.map(_ -> p.length)).groupMapReduce(_._1)(_._2)(_ + _)
      held.toVector.sortBy { case (host, bytes) => (-bytes, host) }.map(_._1).take(HostsMax).toArray
    }
}

private[spark] object Layout {
  /** What Hadoop and Spark cut input by; a file's own stripes are far smaller. */
  val BlockBytes: Long = 32L << 20
  private val HostsMax = 3

  val ServerDefaults: FsServerDefaults = new FsServerDefaults(
    BlockBytes, 512, 64 << 10, 1.toShort, 4 << 10, false, 0L, DataChecksum.Type.NULL)
}
