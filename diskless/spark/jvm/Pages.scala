package io.diskless.spark

import java.util.NoSuchElementException

import org.apache.hadoop.fs.{FileStatus, RemoteIterator}

/** The entries of a directory, fetched page by page. A missing one is noticed at once. */
private[spark] final class Pages(store: Store, path: String, convert: Status => FileStatus)
    extends RemoteIterator[FileStatus] {
  private var page = store.list(path, "")
  private var at = 0

  override def hasNext: Boolean = {
    if (at == page._1.size && page._2) {
      page = store.list(path, page._1.last.name)
      at = 0
    }
    at < page._1.size
  }

  override def next(): FileStatus = {
    if (!hasNext) throw new NoSuchElementException(path)
    at += 1
    convert(page._1(at - 1))
  }
}
