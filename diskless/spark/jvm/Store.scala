package io.diskless.spark

import java.io.FileNotFoundException
import java.net.URI

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.FileSystem

/** The namespace of one cluster, by absolute paths, with Hadoop's exceptions.
  *
  * What the file system, the FileContext's one and the checkpoint manager share. Every
  * mutation is one command: atomic, and repeated safely until it is answered.
  */
private[spark] final class Store(val caller: Caller, lenientSync: Boolean) {
  import Store._

  def stat(path: String): Status =
    ask(Messages.status(caller.call(Kind.Stat, Messages.path(path), s"stat $path").json))

  def find(path: String): Option[Status] =
    try Some(stat(path))
    catch { case _: FileNotFoundException => None }

  /** A page of a directory's entries by name, from beyond `after` on, and whether more follow. */
  def list(path: String, after: String): (Vector[Status], Boolean) = ask {
    val meta = Messages.path(path).put("after", after).put("limit", EntriesPerPage)
    val page = caller.call(Kind.List, meta, s"list $path").json
    val entries = page.path("entries").elements.asScala.map(Messages.status).toVector
    (entries, entries.nonEmpty && page.path("more").asBoolean)
  }

  def listAll(path: String): Vector[Status] = {
    val all = Vector.newBuilder[Status]
    var page = list(path, "")
    all ++= page._1
    while (page._2) {
      page = list(path, page._1.last.name)
      all ++= page._1
    }
    all.result()
  }

  /** Without `parents` it is refused if the directory above is not there. */
  def mkdirs(path: String, parents: Boolean = true): Unit = ask {
    val meta = Messages.path(path)
    if (!parents) meta.put("parents", false)
    caller.mutate(Kind.Mkdirs, meta, s"mkdirs $path")
  }

  /** Whether there was something to delete. */
  def delete(path: String, recursive: Boolean): Boolean = ask {
    val meta = Messages.path(path).put("recursive", recursive)
    caller.mutate(Kind.Delete, meta, s"delete $path").json.path("deleted").asBoolean
  }

  /** Deletes the files of these names below a directory that are there, in one step. Throws the
    * agents' own refusals; nothing is deleted then.
    */
  def prune(path: String, names: Seq[String]): Unit = {
    val meta = Messages.path(path)
    val array = meta.putArray("names")
    names.foreach(name => array.add(name))
    caller.mutate(Kind.Prune, meta, s"delete ${names.size} files below $path")
  }

  /** Throws the agents' own refusals, which say more than Hadoop's exceptions. */
  def move(source: String, target: String, overwrite: Boolean): Unit = {
    val meta = Messages.meta()
      .put("source", source).put("target", target).put("overwrite", overwrite)
    caller.mutate(Kind.Rename, meta, s"rename $source to $target")
  }

  def rename(source: String, target: String, overwrite: Boolean): Unit =
    // Hadoop has no renaming of a thing to itself, not even with overwrite.
    ask(move(source, target, overwrite && source != target))

  def summary(path: String): Summary = ask {
    val found = caller.call(Kind.Summary, Messages.path(path), s"summary $path").json
    Summary(found.path("files").asLong, found.path("directories").asLong,
      found.path("bytes").asLong)
  }

  /** Keeps a directory as it is now; the name is made up if it is empty, and returned. */
  def snapshot(path: String, name: String): String = ask {
    val meta = Messages.meta().put("name", name)
    meta.putArray("paths").add(path)
    caller.mutate(Kind.Snapshot, meta, s"snapshot $path").json.path("name").asText
  }

  def renameSnapshot(path: String, old: String, name: String): Unit = ask {
    val meta = Messages.path(path).put("old", old).put("new", name)
    caller.mutate(Kind.RenameSnapshot, meta, s"rename snapshot $old of $path")
  }

  def deleteSnapshot(path: String, name: String): Unit = ask {
    val meta = Messages.path(path)
    meta.putArray("names").add(name)
    caller.mutate(Kind.DeleteSnapshots, meta, s"delete snapshot $name of $path")
  }

  /** Without `parents` it is refused on closing if the directory above is not there. */
  def create(path: String, overwrite: Boolean, parents: Boolean = true): DisklessOutputStream =
    new DisklessOutputStream(caller, path, overwrite, parents, lenientSync)

  def open(path: String, statistics: FileSystem.Statistics): DisklessInputStream =
    try new DisklessInputStream(caller, path, statistics)
    catch {
      case error: DisklessException if error.reason == Errors.PathIsDirectory =>
        throw new FileNotFoundException(error.getMessage)
      case error: DisklessException => ask(throw error)
    }

  /** How many bytes of files fit, beside their parity, and how many more: as much of the agents'
    * memory as data shards are of a stripe. */
  def room: Room = ask {
    val found = caller.call(Kind.Status, Messages.meta(), "status").json
    val (data, parity) = (found.path("data_shards").asLong, found.path("parity_shards").asLong)
    val there = found.path("agents").elements.asScala.toVector
    def files(bytes: Iterable[Long]): Long = bytes.sum / math.max(data + parity, 1) * data
    Room(files(there.map(_.path("bytes_max").asLong)),
      files(there.map(a => math.max(a.path("bytes_max").asLong - a.path("bytes_used").asLong, 0L))))
  }

  /** Where the bytes of a file are: the hosts of its data shards, extent by extent, and the one
    * that has probably a copy of it all. */
  def places(path: String): Places = ask {
    val meta = Messages.path(path).put("places", true)
    val opened = caller.call(Kind.Open, meta, s"locate $path").json
    val slots = opened.path("places").elements.asScala.toVector
    val extents = Messages.extents(opened.path("extents"))
    val starts = extents.scanLeft(0L)(_ + _.length)
    val hosts = caller.hosts
    val near = Option(opened.get("near")).filter(_.isInt).flatMap(slot => hosts.get(slot.asInt))
    Places(near, extents.zip(starts).zip(slots).map { case ((extent, start), held) =>
      Placed(start, extent.length, held.elements.asScala.flatMap(s => hosts.get(s.asInt)).toVector)
    })
  }

  /** All hosts with agents. */
  def hosts: Vector[String] = caller.hosts.values.toVector.distinct

  private def ask[T](operation: => T): T = Errors.asHadoop(operation)
}

private[spark] object Store {
  /** Whether `hflush` and `hsync` do nothing instead of being refused. */
  val LenientSyncKey = "fs.diskless.downgrade.syncable.exceptions"

  def apply(name: URI, conf: Configuration): Store =
    new Store(Clusters.find(name.getAuthority, conf), conf.getBoolean(LenientSyncKey, false))

  /** Below this name in a directory are its snapshots, as in HDFS. */
  val Snapshots = ".snapshot"

  private val EntriesPerPage = 1000

  final case class Summary(files: Long, directories: Long, bytes: Long)

  final case class Room(capacity: Long, remaining: Long)

  final case class Places(near: Option[String], placed: Vector[Placed])

  final case class Placed(start: Long, length: Long, hosts: Vector[String])
}
