package io.diskless.spark

import java.io.{DataInput, DataOutput, FileNotFoundException}
import java.net.URI

import org.apache.hadoop.fs.{
  BlockLocation, CommonPathCapabilities, EtagSource, FileChecksum, FileStatus, FsServerDefaults, FsStatus,
  LocatedFileStatus, Path}
import org.apache.hadoop.fs.impl.PathCapabilitiesSupport
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.security.UserGroupInformation
import org.apache.hadoop.util.DataChecksum
import org.apache.spark.sql.diskless.LiveExecutors

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
    new EtagStatus(etag(status), new FileStatus(status.size, status.directory, replication,
      blockBytes, status.mtimeMs, status.mtimeMs, permission, user, user, toHadoop(status.path)))
  }

  /** What a cluster of agents looks like as one volume. */
  def room: FsStatus = {
    val found = store.room
    new FsStatus(found.capacity, found.capacity - found.remaining, found.remaining)
  }

  /** Of a whole file; none of its first bytes. */
  def checksum(path: Path, length: Long): FileChecksum = {
    val found = store.stat(toDiskless(path))
    if (found.directory) throw new FileNotFoundException(s"$path is a directory")
    if (length < found.size) null else new XxHash64(found.checksum)
  }

  /** For each block that [start, start + length) touches, the hosts with most of its bytes, the
    * one first that has probably a copy of the whole file; by the names that Spark has for them.
    *
    * A file that is inline in the namespace is as near to any host as to any other.
    */
  def locate(status: FileStatus, start: Long, length: Long): Array[BlockLocation] =
    if (status.isDirectory || start >= status.getLen || length <= 0) Array.empty
    else {
      val Store.Places(near, placed) = store.places(toDiskless(status.getPath))
      val executors = LiveExecutors.hosts
      val end = math.min(start + length, status.getLen)
      (start / BlockBytes to (end - 1) / BlockBytes).map { block =>
        val from = block * BlockBytes
        val to = math.min(from + BlockBytes, status.getLen)
        val within = placed.filter(p => p.start < to && p.start + p.length > from)
        val hosts = nearest(near, within, executors).flatMap(HostNames.of(_, executors)).distinct.toArray
        new BlockLocation(hosts, hosts, from, to - from)
      }.toArray
    }

  /** With where its bytes are, and its tag. */
  def located(status: FileStatus): LocatedFileStatus = new EtagLocatedStatus(status,
    if (status.isFile) locate(status, 0, status.getLen) else null)

  /** Of hosts without executors none, if there are others. */
  private[spark] def nearest(
      near: Option[String], placed: Vector[Store.Placed], executors: Set[String]): Vector[String] =
    if (placed.isEmpty) store.hosts
    else {
      val held = placed.flatMap(p => p.hosts.map(_ -> p.length)).groupMapReduce(_._1)(_._2)(_ + _)
      val most = held.toVector.sortBy { case (host, bytes) => (-bytes, host) }.map(_._1)
      val all = (near.toVector ++ most).distinct
      val useful = all.filter(HostNames.hasExecutor(_, executors))
      (if (useful.nonEmpty) useful else all).take(HostsMax)
    }
}

private[spark] object Layout {
  /** A file's number: no other content ever has it, and a rename keeps it. */
  private def etag(status: Status): String =
    if (status.directory) null else s"${status.id}-${status.checksum}"

  /** What Hadoop and Spark cut input by; a file's own stripes are far smaller. */
  val BlockBytes: Long = 32L << 20
  private val HostsMax = 3

  /** Those of both of Hadoop's interfaces. */
  private val Capabilities: Set[String] = Set(
    CommonPathCapabilities.ABORTABLE_STREAM, CommonPathCapabilities.FS_SNAPSHOTS,
    CommonPathCapabilities.FS_CHECKSUMS, CommonPathCapabilities.ETAGS_AVAILABLE,
    CommonPathCapabilities.ETAGS_PRESERVED_IN_RENAME)

  /** Throws IllegalArgumentException for what is no capability. */
  def hasCapability(path: Path, capability: String): Boolean =
    Capabilities(PathCapabilitiesSupport.validatePathCapabilityArgs(path, capability))

  val ServerDefaults: FsServerDefaults = new FsServerDefaults(
    BlockBytes, 512, 64 << 10, 1.toShort, 4 << 10, false, 0L, DataChecksum.Type.NULL)
}

/** A status with the tag by which a content is known; null for a directory. */
private[spark] final class EtagStatus(tag: String, of: FileStatus)
    extends FileStatus(of) with EtagSource {
  override def getEtag: String = tag
}

/** The same, with where the bytes are. */
private[spark] final class EtagLocatedStatus(of: FileStatus, blocks: Array[BlockLocation])
    extends LocatedFileStatus(of, blocks) with EtagSource {
  override val getEtag: String = of match {
    case tagged: EtagSource => tagged.getEtag
    case _ => null
  }
}

/** The checksum that agents and clients know a file by: 16 hexadecimal digits. */
private[spark] final class XxHash64(private var digits: String) extends FileChecksum {
  /** For Hadoop's serialization alone. */
  def this() = this("0" * 16)

  override def getAlgorithmName: String = "XXH64"

  override def getLength: Int = java.lang.Long.BYTES

  override def getBytes: Array[Byte] =
    java.nio.ByteBuffer.allocate(getLength).putLong(java.lang.Long.parseUnsignedLong(digits, 16)).array

  override def write(out: DataOutput): Unit = out.write(getBytes)

  override def readFields(in: DataInput): Unit = digits = f"${in.readLong()}%016x"
}
