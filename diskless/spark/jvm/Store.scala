package io.diskless.spark

import java.io.FileNotFoundException

import scala.jdk.CollectionConverters._

import org.apache.hadoop.fs.FileSystem

/** The namespace of one cluster, by absolute paths, with Hadoop's exceptions.
  *
  * What the file system, the FileContext's one and the checkpoint manager share. Every
  * mutation is one command: atomic, and repeated safely until it is answered.
  */
private[spark] final class Store(caller: Caller) {
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

  def mkdirs(path: String): Unit =
    ask(caller.mutate(Kind.Mkdirs, Messages.path(path), s"mkdirs $path"))

  /** Whether there was something to delete. */
  def delete(path: String, recursive: Boolean): Boolean = ask {
    val meta = Messages.path(path).put("recursive", recursive)
    caller.mutate(Kind.Delete, meta, s"delete $path").json.path("deleted").asBoolean
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

  def create(path: String, overwrite: Boolean): DisklessOutputStream =
    new DisklessOutputStream(caller, path, overwrite)

  def open(path: String, statistics: FileSystem.Statistics): DisklessInputStream =
    try new DisklessInputStream(caller, path, statistics)
    catch {
      case error: DisklessException if error.reason == Errors.PathIsDirectory =>
        throw new FileNotFoundException(error.getMessage)
      case error: DisklessException => ask(throw error)
    }

  /** Where the bytes of a file are: the slots of its data shards, extent by extent. */
  def places(path: String): Vector[Placed] = ask {
    val meta = Messages.path(path).put("places", true)
    val opened = caller.call(Kind.Open, meta, s"locate $path").json
    val slots = opened.path("places").elements.asScala.toVector
    val extents = Messages.extents(opened.path("extents"))
    val starts = extents.scanLeft(0L)(_ + _.length)
    val hosts = caller.hosts
    extents.zip(starts).zip(slots).map { case ((extent, start), held) =>
      Placed(start, extent.length, held.elements.asScala.flatMap(s => hosts.get(s.asInt)).toVector)
    }
  }

  /** All hosts with agents. */
  def hosts: Vector[String] = caller.hosts.values.toVector.distinct

  private def ask[T](operation: => T): T = Errors.asHadoop(operation)
}

private[spark] object Store {
  /** Below this name in a directory are its snapshots, as in HDFS. */
  val Snapshots = ".snapshot"

  private val EntriesPerPage = 1000

  final case class Summary(files: Long, directories: Long, bytes: Long)

  final case class Placed(start: Long, length: Long, hosts: Vector[String])
}
