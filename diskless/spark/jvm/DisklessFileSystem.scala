package io.diskless.spark

import java.io.FileNotFoundException
import java.net.URI
import java.util.EnumSet

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.Options.{ChecksumOpt, Rename}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable
import org.apache.hadoop.util.functional.RemoteIterators

/** `diskless://` for Hadoop's FileSystem.
  *
  * A file appears when its stream is closed, and is durable then. Directories are made as
  * needed. There are no owners, permissions or settable times, and nothing is appended,
  * truncated or concatenated. `rename` and `delete` behave as those of HDFS.
  */
class DisklessFileSystem extends FileSystem {
  private var uri: URI = _
  private var workingDirectory: Path = _
  private var store: Store = _
  private var layout: Layout = _

  override def initialize(name: URI, conf: Configuration): Unit = {
    super.initialize(name, conf)
    setConf(conf)
    uri = URI.create(s"$getScheme://${Option(name.getAuthority).getOrElse("/")}")
    store = Store(name, conf)
    layout = new Layout(uri, store)
    workingDirectory = getHomeDirectory
  }

  override def getScheme: String = Descriptor.Scheme

  override def getUri: URI = uri

  /** There are no delegation tokens to be fetched: our own is in the configuration. */
  override def getCanonicalServiceName: String = null

  override def getWorkingDirectory: Path = workingDirectory

  override def setWorkingDirectory(path: Path): Unit = workingDirectory = makeAbsolute(path)

  override def getDefaultBlockSize: Long = Layout.BlockBytes

  override def getServerDefaults: FsServerDefaults = Layout.ServerDefaults

  override def getServerDefaults(path: Path): FsServerDefaults = Layout.ServerDefaults

  // Content.

  override def open(path: Path, bufferSize: Int): FSDataInputStream = {
    statistics.incrementReadOps(1)
    new FSDataInputStream(store.open(resolve(path), statistics))
  }

  /** Without overwrite it looks now, so that a refusal comes early, and again on closing. */
  override def create(
      path: Path, permission: FsPermission, overwrite: Boolean, bufferSize: Int,
      replication: Short, blockSize: Long, progress: Progressable): FSDataOutputStream = {
    val target = resolve(path)
    if (!overwrite && store.find(target).isDefined) {
      throw new FileAlreadyExistsException(s"$target exists already")
    }
    new FSDataOutputStream(begin(target, overwrite), statistics)
  }

  override def create(
      path: Path, permission: FsPermission, flags: EnumSet[CreateFlag], bufferSize: Int,
      replication: Short, blockSize: Long, progress: Progressable,
      checksum: ChecksumOpt): FSDataOutputStream = {
    val target = resolve(path)
    val replaces = Flags.check(path, flags, store.find(target).isDefined)
    new FSDataOutputStream(begin(target, replaces), statistics)
  }

  /** A file that appears on closing or, if it may not replace what is there, is refused then. */
  private[spark] def createAtomic(path: Path, overwrite: Boolean): DisklessOutputStream =
    begin(resolve(path), overwrite)

  /** That a query may write to the checkpoint which has this log of offsets. */
  private[spark] def watch(offsets: Path): Unit =
    Leases.watch(store.caller, offsets, resolve(offsets.getParent))

  /** The caller of this cluster, and what it calls a path. */
  private[spark] def reach(path: Path): (Caller, String) = (store.caller, resolve(path))

  override def createNonRecursive(
      path: Path, permission: FsPermission, flags: EnumSet[CreateFlag], bufferSize: Int,
      replication: Short, blockSize: Long, progress: Progressable): FSDataOutputStream = {
    val target = resolve(path)
    val replaces = Flags.check(path, flags, store.find(target).isDefined)
    requireParent(target) // now, so that a refusal comes early; it may be gone on closing
    new FSDataOutputStream(begin(target, replaces, parents = false), statistics)
  }

  override def append(path: Path, bufferSize: Int, progress: Progressable): FSDataOutputStream =
    throw Flags.noAppend(path)

  // Namespace.

  override def rename(source: Path, target: Path): Boolean = {
    statistics.incrementWriteOps(1)
    val (from, to) = (resolve(source), resolve(target))
    tryMove(from, to) match {
      case None => true
      case Some(Errors.AlreadyExists) =>
        store.find(to) match {
          case Some(there) if there.directory =>
            tryMove(from, s"${to.stripSuffix("/")}/${source.getName}").isEmpty
          case there => there.isDefined && from == to
        }
      case _ => false
    }
  }

  override protected def rename(source: Path, target: Path, options: Rename*): Unit = {
    statistics.incrementWriteOps(1)
    store.rename(
      resolve(source), resolve(target), overwrite = options.contains(Rename.OVERWRITE))
  }

  /** The root stays, as in HDFS. */
  override def delete(path: Path, recursive: Boolean): Boolean = {
    statistics.incrementWriteOps(1)
    resolve(path) match {
      case "/" =>
        if (!recursive && store.list("/", "")._1.nonEmpty) {
          throw new PathIsNotEmptyDirectoryException("/")
        }
        false
      case target => store.delete(target, recursive)
    }
  }

  /** Files below a directory, by pages, each in one step. */
  override def createBulkDelete(path: Path): BulkDelete = {
    resolve(path)
    new BulkDeletion(makeQualified(path), store, { one =>
      statistics.incrementWriteOps(1)
      resolve(one)
    })
  }

  override def mkdirs(path: Path, permission: FsPermission): Boolean = {
    statistics.incrementWriteOps(1)
    store.mkdirs(resolve(path))
    true
  }

  override def getFileStatus(path: Path): FileStatus = {
    statistics.incrementReadOps(1)
    layout.toHadoop(store.stat(resolve(path)))
  }

  override def listStatus(path: Path): Array[FileStatus] = {
    statistics.incrementReadOps(1)
    store.listAll(resolve(path)).map(status => layout.toHadoop(status)).toArray
  }

  override def listStatusIterator(path: Path): RemoteIterator[FileStatus] = {
    statistics.incrementReadOps(1)
    new Pages(store, resolve(path), status => layout.toHadoop(status))
  }

  override def getContentSummary(path: Path): ContentSummary = {
    statistics.incrementReadOps(1)
    val found = store.summary(resolve(path))
    new ContentSummary.Builder().length(found.bytes).fileCount(found.files)
      .directoryCount(found.directories).spaceConsumed(found.bytes).build()
  }

  override protected def listLocatedStatus(
      path: Path, filter: PathFilter): RemoteIterator[LocatedFileStatus] = {
    val found = RemoteIterators.filteringRemoteIterator[FileStatus](
      listStatusIterator(path), status => filter.accept(status.getPath))
    RemoteIterators.mappingRemoteIterator[FileStatus, LocatedFileStatus](found, status =>
      layout.located(status))
  }

  override def getStatus(path: Path): FsStatus = {
    statistics.incrementReadOps(1)
    layout.room
  }

  override def getFileChecksum(path: Path, length: Long): FileChecksum = {
    statistics.incrementReadOps(1)
    layout.checksum(makeAbsolute(path), length)
  }

  override def getFileBlockLocations(
      status: FileStatus, start: Long, length: Long): Array[BlockLocation] = {
    if (status == null) return null
    if (start < 0 || length < 0) {
      throw new IllegalArgumentException(s"start $start, length $length")
    }
    statistics.incrementReadOps(1)
    layout.locate(status, start, length)
  }

  // Snapshots, below `.snapshot` of a directory.

  /** Hadoop gives null where nobody chose a name. */
  override def createSnapshot(path: Path, name: String): Path = {
    statistics.incrementWriteOps(1)
    val made = store.snapshot(resolve(path), Option(name).getOrElse(""))
    new Path(new Path(makeQualified(path), Store.Snapshots), made)
  }

  override def renameSnapshot(path: Path, old: String, name: String): Unit = {
    statistics.incrementWriteOps(1)
    store.renameSnapshot(resolve(path), old, name)
  }

  override def deleteSnapshot(path: Path, name: String): Unit = {
    statistics.incrementWriteOps(1)
    store.deleteSnapshot(resolve(path), name)
  }

  override def hasPathCapability(path: Path, capability: String): Boolean =
    Layout.hasCapability(makeQualified(path), capability) ||
      super.hasPathCapability(path, capability)

  private def begin(
      target: String, overwrite: Boolean, parents: Boolean = true): DisklessOutputStream = {
    statistics.incrementWriteOps(1)
    store.create(target, overwrite, parents)
  }

  private def requireParent(target: String): Unit = {
    val parent = target.substring(0, math.max(target.lastIndexOf('/'), 1))
    store.find(parent) match {
      case None => throw new FileNotFoundException(s"$parent: no such directory")
      case Some(there) if !there.directory =>
        throw new ParentNotDirectoryException(s"$parent is a file")
      case _ => ()
    }
  }

  /** None if it was moved, else the reason why not. Only what Hadoop answers with false. */
  private def tryMove(source: String, target: String): Option[String] =
    try {
      store.move(source, target, overwrite = false)
      None
    } catch {
      case error: DisklessException if DisklessFileSystem.RenameRefusals(error.reason) =>
        Some(error.reason)
      case error: DisklessException => Errors.asHadoop(throw error)
    }

  private def resolve(path: Path): String = {
    checkPath(path)
    layout.toDiskless(makeAbsolute(path))
  }

  private def makeAbsolute(path: Path): Path =
    if (path.isAbsolute) path else new Path(workingDirectory, path)
}

private[spark] object DisklessFileSystem {
  private val RenameRefusals = Set(
    Errors.AlreadyExists, Errors.NotFound, Errors.PathIsFile, Errors.PathIsDirectory, "BadRequest")
}
