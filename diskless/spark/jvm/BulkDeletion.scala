package io.diskless.spark

import java.util.{Collection => JCollection, List => JList, Map => JMap}

import scala.jdk.CollectionConverters._

import org.apache.hadoop.fs.{BulkDelete, BulkDeleteUtils, Path}
import org.apache.hadoop.util.functional.Tuples

/** Files below one directory, deleted by the page, each page by one command.
  *
  * A page that has a directory in it, or anything else that cannot go with the rest, is deleted
  * path by path, as the contract allows: an empty directory goes too, and what fails is told by
  * itself. What is not there is no failure.
  */
private[spark] final class BulkDeletion(base: Path, store: Store, resolve: Path => String)
    extends BulkDelete {
  import BulkDeletion._

  override def pageSize: Int = PageSize

  override def basePath: Path = base

  override def bulkDelete(paths: JCollection[Path]): JList[JMap.Entry[Path, String]] = {
    BulkDeleteUtils.validateBulkDeletePaths(paths, PageSize, base)
    val chosen = paths.asScala.toVector.distinct
    val failed =
      if (chosen.isEmpty || deleteTogether(chosen.map(resolve))) Vector.empty
      else chosen.flatMap(path => deleteOne(path))
    failed.asJava
  }

  override def close(): Unit = ()

  /** Whether all are gone. */
  private def deleteTogether(paths: Vector[String]): Boolean = {
    val above = commonDirectory(paths)
    val names = paths.map(_.substring(above.length).stripPrefix("/"))
    if (names.contains("")) false
    else {
      try {
        store.prune(if (above.isEmpty) "/" else above, names)
        true
      } catch { case error: DisklessException if !Lasting(error.reason) => false }
    }
  }

  private def deleteOne(path: Path): Option[JMap.Entry[Path, String]] =
    try {
      store.delete(resolve(path), recursive = false)
      None
    } catch {
      case error: DisklessException if Lasting(error.reason) => throw error
      case error: java.io.IOException => Some(Tuples.pair(path, error.toString))
    }
}

private[spark] object BulkDeletion {
  /** Files of one command. */
  val PageSize = 256

  /** No other path would fare better. */
  private val Lasting =
    Set(Errors.DeadlineExceeded, Errors.TierBehind, Errors.NoCluster, Errors.Restored, Errors.CorruptData)

  /** The deepest directory that all paths are below; "" is the root. */
  private def commonDirectory(paths: Vector[String]): String = {
    val parents = paths.map(path => path.split('/').toVector.dropRight(1))
    val shared = parents.reduce((a, b) => a.zip(b).takeWhile { case (x, y) => x == y }.map(_._1))
    shared.mkString("/")
  }
}
