package io.diskless.spark

import java.net.URI
import java.util.EnumSet

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.Options.ChecksumOpt
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable
import org.apache.hadoop.util.functional.RemoteIterators

/** `diskless://` for Hadoop's FileContext, which Spark's streaming uses.
  *
  * Not made from the FileSystem by Hadoop's adapter, whose `create` asks twice before it does
  * anything and whose `rename` with overwrite deletes first. Here each is one command. What may
  * not be replaced is looked for when a file is created and again when it is closed; a missing
  * parent is found on closing, by the same command.
  */
class DisklessFs(name: URI, conf: Configuration)
    extends AbstractFileSystem(name, Descriptor.Scheme, false, -1) {
  private val store = Store(name, conf)
  private val layout = new Layout(getUri, store)

  override def getUriDefaultPort: Int = -1

  override def getServerDefaults: FsServerDefaults = Layout.ServerDefaults

  override def getServerDefaults(path: Path): FsServerDefaults = Layout.ServerDefaults

  override def createInternal(
      path: Path, flags: EnumSet[CreateFlag], permission: FsPermission, bufferSize: Int,
      replication: Short, blockSize: Long, progress: Progressable, checksum: ChecksumOpt,
      createParent: Boolean): FSDataOutputStream = {
    val target = resolve(path)
    val replaces = Flags.check(path, flags, store.find(target).isDefined)
    new FSDataOutputStream(store.create(target, replaces, createParent), statistics)
  }

  override def open(path: Path, bufferSize: Int): FSDataInputStream =
    new FSDataInputStream(store.open(resolve(path), statistics))

  override def mkdir(path: Path, permission: FsPermission, createParent: Boolean): Unit =
    store.mkdirs(resolve(path), createParent)

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

  override def listLocatedStatus(path: Path): RemoteIterator[LocatedFileStatus] =
    RemoteIterators.mappingRemoteIterator[FileStatus, LocatedFileStatus](
      listStatusIterator(path), status => layout.located(status))

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
    Layout.hasCapability(path, capability) || super.hasPathCapability(path, capability)

  override def getFsStatus: FsStatus = layout.room

  override def getFileChecksum(path: Path): FileChecksum = {
    checkPath(path)
    layout.checksum(path, Long.MaxValue)
  }

  // What diskless does not have is accepted and ignored, as by Hadoop's own FileSystem.

  override def setReplication(path: Path, replication: Short): Boolean = true

  override def setPermission(path: Path, permission: FsPermission): Unit = ()

  override def setOwner(path: Path, user: String, group: String): Unit = ()

  override def setTimes(path: Path, modified: Long, accessed: Long): Unit = ()

  override def setVerifyChecksum(verify: Boolean): Unit = ()

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
