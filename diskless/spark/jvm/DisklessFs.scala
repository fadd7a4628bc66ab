package io.diskless.spark

import java.net.URI
import java.util.EnumSet

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.Options.ChecksumOpt
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable

/** `diskless://` for Hadoop's FileContext, which Spark's streaming uses.
  *
  * Not made from the FileSystem by Hadoop's adapter, whose `create` asks twice before it does
  * anything and whose `rename` with overwrite deletes first. Here each is one command. Parent
  * directories are made as needed, even for who does not ask for it: to look for them first
  * would cost every file a round trip, and they might be gone a moment later.
  */
class DisklessFs(name: URI, conf: Configuration)
    extends AbstractFileSystem(name, Descriptor.Scheme, false, -1) {
  private val store = new Store(Clusters.find(name.getAuthority, conf))
  private val layout = new Layout(getUri, store)

  override def getUriDefaultPort: Int = -1

  override def getServerDefaults: FsServerDefaults = Layout.ServerDefaults

  override def getServerDefaults(path: Path): FsServerDefaults = Layout.ServerDefaults

  override def createInternal(
      path: Path, flags: EnumSet[CreateFlag], permission: FsPermission, bufferSize: Int,
      replication: Short, blockSize: Long, progress: Progressable, checksum: ChecksumOpt,
      createParent: Boolean): FSDataOutputStream = {
    if (flags.contains(CreateFlag.APPEND)) {
      throw new UnsupportedOperationException(
        s"append $path: a file of diskless is written once; write a new one")
    }
    val target = resolve(path)
    if (!flags.contains(CreateFlag.CREATE)) store.stat(target) // It must be there.
    new FSDataOutputStream(
      store.create(target, flags.contains(CreateFlag.OVERWRITE)), statistics)
  }

  override def open(path: Path, bufferSize: Int): FSDataInputStream =
    new FSDataInputStream(store.open(resolve(path), statistics))

  override def mkdir(path: Path, permission: FsPermission, createParent: Boolean): Unit = {
    val target = resolve(path)
    if (!createParent) requireParent(target)
    store.mkdirs(target)
  }

  override def delete(path: Path, recursive: Boolean): Boolean = {
    val target = resolve(path)
    target != "/" && store.delete(target, recursive)
  }

  override def renameInternal(source: Path, target: Path): Unit =
    renameInternal(source, target, overwrite = false)

  /** One atomic command. Spark leaves its temporary file when a commit is refused: no more. */
  override def renameInternal(source: Path, target: Path, overwrite: Boolean): Unit =
    try store.rename(resolve(source), resolve(target), overwrite)
    catch {
      case error: FileAlreadyExistsException =>
        if (DisklessFs.SparksTemporary.matches(source.getName)) delete(source, false)
        throw error
    }

  override def getFileStatus(path: Path): FileStatus = layout.toHadoop(store.stat(resolve(path)))

  override def listStatus(path: Path): Array[FileStatus] =
    store.listAll(resolve(path)).map(status => layout.toHadoop(status)).toArray

  override def listStatusIterator(path: Path): RemoteIterator[FileStatus] =
    new Pages(store, resolve(path), status => layout.toHadoop(status))

  override def getFileBlockLocations(
      path: Path, start: Long, length: Long): Array[BlockLocation] =
    layout.locate(getFileStatus(path), start, length)

  override def createSnapshot(path: Path, name: String): Path = {
    val made = store.snapshot(resolve(path), Option(name).getOrElse(""))
    new Path(new Path(makeQualified(path), Store.Snapshots), made)
  }

  override def renameSnapshot(path: Path, old: String, name: String): Unit =
    store.renameSnapshot(resolve(path), old, name)

  override def deleteSnapshot(path: Path, name: String): Unit =
    store.deleteSnapshot(resolve(path), name)

  override def hasPathCapability(path: Path, capability: String): Boolean =
    capability.toLowerCase match {
      case CommonPathCapabilities.ABORTABLE_STREAM | CommonPathCapabilities.FS_SNAPSHOTS => true
      case _ => super.hasPathCapability(path, capability)
    }

  override def getFsStatus: FsStatus = new FsStatus(Long.MaxValue, 0, Long.MaxValue)

  override def getFileChecksum(path: Path): FileChecksum = null

  // What diskless does not have is accepted and ignored, as by Hadoop's own FileSystem.

  override def setReplication(path: Path, replication: Short): Boolean = true

  override def setPermission(path: Path, permission: FsPermission): Unit = ()

  override def setOwner(path: Path, user: String, group: String): Unit = ()

  override def setTimes(path: Path, modified: Long, accessed: Long): Unit = ()

  override def setVerifyChecksum(verify: Boolean): Unit = ()

  private def requireParent(target: String): Unit = {
    val parent = target.substring(0, math.max(target.lastIndexOf('/'), 1))
    if (!store.stat(parent).directory) throw new ParentNotDirectoryException(s"$parent is a file")
  }

  private def resolve(path: Path): String = {
    checkPath(path)
    layout.toDiskless(path)
  }
}

private[spark] object DisklessFs {
  /** As Spark's rename-based checkpoint managers name a file that is being written. */
  private val SparksTemporary =
    """\.[^/]+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.TID\d+)?\.tmp""".r
}
