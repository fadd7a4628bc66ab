package io.diskless.spark

import java.io.{FileNotFoundException, IOException}

import scala.jdk.CollectionConverters._

import org.apache.hadoop.fs.{
  BulkDelete, CommonPathCapabilities, EtagSource, FileAlreadyExistsException, FileStatus,
  ParentNotDirectoryException, Path}

/** Hadoop's contract for directories, deletion, listing and status; the root among them. */
class DirectorySuite extends Suite {
  test("mkdirs makes all that is missing and may be repeated") { env =>
    Check.that(env.fs.mkdirs(env.path("a/b/c")))
    Check.that(env.fs.mkdirs(env.path("a/b/c")))
    Check.that(env.fs.getFileStatus(env.path("a/b")).isDirectory)
    Check.that(env.fs.mkdirs(new Path(env.base, "/")))
  }

  test("mkdirs refuses a file in its way") { env =>
    env.write(env.path("f"), Bytes.random(1))
    Check.throws[FileAlreadyExistsException](env.fs.mkdirs(env.path("f")))
    Check.throws[ParentNotDirectoryException](env.fs.mkdirs(env.path("f/d")))
    Check.that(env.fs.getFileStatus(env.path("f")).isFile)
  }

  test("delete tells whether there was something") { env =>
    Check.that(!env.fs.delete(env.path("no"), true))
    Check.that(!env.fs.delete(env.path("no"), false))
    env.write(env.path("f"), Bytes.random(1))
    Check.that(env.fs.delete(env.path("f"), false))
    Check.that(!env.fs.exists(env.path("f")))
    env.fs.mkdirs(env.path("d"))
    Check.that(env.fs.delete(env.path("d"), false))
  }

  test("a directory with entries is only deleted recursively") { env =>
    env.write(env.path("d/e/f"), Bytes.random(1))
    Check.throws[IOException](env.fs.delete(env.path("d"), false))
    Check.that(env.fs.exists(env.path("d/e/f")))
    Check.that(env.fs.delete(env.path("d"), true))
    Check.that(!env.fs.exists(env.path("d")))
  }

  test("the root exists and cannot be deleted") { env =>
    val root = new Path(env.base, "/")
    env.write(env.path("f"), Bytes.random(1))
    Check.that(env.fs.getFileStatus(root).isDirectory)
    Check.throws[IOException](env.fs.delete(root, false))
    Check.that(!env.fs.delete(root, true))
    Check.that(env.fs.exists(env.path("f")))
    Check.throws[IOException](env.write(root, Bytes.random(1), overwrite = true))
    Check.that(env.fs.listStatus(root).nonEmpty)
  }

  test("a page of files is deleted together, and what is not there is no failure") { env =>
    val files = (0 until 5).map(n => env.path(s"d/$n/f"))
    files.foreach(env.write(_, Bytes.random(1)))
    env.write(env.path("d/stays"), Bytes.random(1))
    bulk(env, "d") { bulk =>
      Check.equal(bulk.pageSize, 256)
      Check.equal(bulk.basePath, env.fs.makeQualified(env.path("d")))
      Check.equal(failures(bulk, files :+ env.path("d/no") :+ env.path("d/no/such") :+ files.head), Nil)
      Check.equal(failures(bulk, Nil), Nil)
      Check.equal(failures(bulk, files), Nil)
    }
    for (file <- files) Check.that(!env.fs.exists(file), file.toString)
    Check.that(env.fs.exists(env.path("d/stays")))
  }

  test("what cannot go with a page is told by itself") { env =>
    env.write(env.path("d/f"), Bytes.random(1))
    env.write(env.path("d/full/g"), Bytes.random(1))
    env.fs.mkdirs(env.path("d/empty"))
    bulk(env, "d") { bulk =>
      Check.equal(failures(bulk, Seq("f", "full", "empty", "f/below").map(name => env.path(s"d/$name"))),
        Seq(env.fs.makeQualified(env.path("d/full"))))
    }
    Check.equal(env.names(env.path("d")), Seq("full"))
    env.write(env.path("d/f"), Bytes.random(1))
    bulk(env, "d/f")(bulk => Check.equal(failures(bulk, Seq(env.path("d/f"))), Nil))
    Check.that(!env.fs.exists(env.path("d/f")))
  }

  test("a page that is too large, or beside its base, is refused before anything is done") { env =>
    env.write(env.path("d/f"), Bytes.random(1))
    bulk(env, "d") { bulk =>
      Check.throws[IllegalArgumentException](failures(bulk, (0 to 256).map(n => env.path(s"d/$n"))))
      Check.throws[IllegalArgumentException](failures(bulk, Seq(env.path("d/f"), env.path("e"))))
    }
    Check.that(env.fs.exists(env.path("d/f")))
    val page = (0 until 256).map(n => env.path(s"d/$n"))
    page.foreach(env.write(_, Bytes.random(1)))
    bulk(env, "d")(bulk => Check.equal(failures(bulk, page), Nil))
    Check.equal(env.names(env.path("d")), Seq("f"))
  }

  test("the summary of a tree, of a file and of an empty directory") { env =>
    for (n <- 0 until 5) env.write(env.path(s"d/$n/f"), Bytes.random(100 + n))
    val found = env.fs.getContentSummary(env.path("d"))
    Check.equal((found.getFileCount, found.getDirectoryCount, found.getLength, found.getSpaceConsumed),
      (5L, 6L, 510L, 510L))
    val file = env.fs.getContentSummary(env.path("d/0/f"))
    Check.equal((file.getFileCount, file.getDirectoryCount, file.getLength), (1L, 0L, 100L))
    env.fs.mkdirs(env.path("e"))
    val empty = env.fs.getContentSummary(env.path("e"))
    Check.equal((empty.getFileCount, empty.getDirectoryCount, empty.getLength), (0L, 1L, 0L))
  }

  test("capabilities that are declared are those that hold") { env =>
    import CommonPathCapabilities._
    val held = Set(ABORTABLE_STREAM, FS_SNAPSHOTS, FS_CHECKSUMS, ETAGS_AVAILABLE,
      ETAGS_PRESERVED_IN_RENAME)
    val lacking = Set(FS_ACLS, FS_APPEND, FS_CONCAT, FS_LIST_CORRUPT_FILE_BLOCKS, FS_PATHHANDLES,
      FS_PERMISSIONS, FS_READ_ONLY_CONNECTOR, FS_STORAGEPOLICY, FS_SYMLINKS, FS_TRUNCATE, FS_XATTRS,
      FS_EXPERIMENTAL_BATCH_LISTING, FS_MULTIPART_UPLOADER, LEASE_RECOVERABLE,
      DIRECTORY_LISTING_INCONSISTENT, "no.such.capability")
    for (capability <- held; asked <- Seq(capability, capability.toUpperCase)) {
      Check.that(env.fs.hasPathCapability(env.base, asked), asked)
      Check.that(env.fc.hasPathCapability(env.base, asked), asked)
    }
    for (capability <- lacking) {
      Check.that(!env.fs.hasPathCapability(env.base, capability), capability)
      Check.that(!env.fc.hasPathCapability(env.base, capability), capability)
    }
    Check.that(env.fs.hasPathCapability(env.base, BULK_DELETE))
    Check.that(!env.fc.hasPathCapability(env.base, BULK_DELETE), "FileContext has no bulk delete")
    Check.throws[IllegalArgumentException](env.fs.hasPathCapability(env.base, ""))
    Check.throws[IllegalArgumentException](env.fc.hasPathCapability(env.base, null))
    Check.throws[UnsupportedOperationException](env.fs.append(env.path("f")))
    Check.throws[UnsupportedOperationException](env.fs.truncate(env.path("f"), 0))
  }

  test("every listing has etags, FileContext's with locations too") { env =>
    env.write(env.path("d/f"), Bytes.random(5))
    val wanted = env.fs.getFileStatus(env.path("d/f")).asInstanceOf[EtagSource].getEtag
    val located = env.fc.listLocatedStatus(env.path("d")).next()
    Check.equal(located.asInstanceOf[EtagSource].getEtag, wanted)
    Check.that(located.getBlockLocations.nonEmpty)
    Check.equal(env.fs.listLocatedStatus(env.path("d")).next().asInstanceOf[EtagSource].getEtag, wanted)
    val plain = env.fc.listStatus(env.path("d")).next()
    Check.equal(plain.asInstanceOf[EtagSource].getEtag, wanted)
  }

  private def bulk(env: Env, base: String)(body: BulkDelete => Unit): Unit = {
    val made = env.fs.createBulkDelete(env.path(base))
    try body(made)
    finally made.close()
  }

  private def failures(bulk: BulkDelete, paths: Seq[Path]): Seq[Path] =
    bulk.bulkDelete(paths.asJava).asScala.map(_.getKey).toSeq

  test("status of what is missing, a file and a directory") { env =>
    Check.throws[FileNotFoundException](env.fs.getFileStatus(env.path("no")))
    Check.throws[FileNotFoundException](env.fs.listStatus(env.path("no")))
    Check.throws[FileNotFoundException](env.fs.listStatusIterator(env.path("no")))
    Check.throws[FileNotFoundException](env.fs.getContentSummary(env.path("no")))
    env.write(env.path("f"), Bytes.random(12))
    val file = env.fs.getFileStatus(env.path("f"))
    Check.that(file.isFile && !file.isDirectory && file.getLen == 12 && file.getBlockSize > 0)
    Check.equal(file.getPath, env.fs.makeQualified(env.path("f")))
    Check.throws[FileNotFoundException](env.fs.getFileStatus(env.path("f/g")))
    val directory = env.fs.getFileStatus(env.base)
    Check.that(directory.isDirectory && directory.getLen == 0)
  }

  test("a file lists itself and an empty directory nothing") { env =>
    env.write(env.path("f"), Bytes.random(12))
    val listed = env.fs.listStatus(env.path("f"))
    Check.equal(listed.map(_.getPath).toSeq, Seq(env.fs.makeQualified(env.path("f"))))
    env.fs.mkdirs(env.path("d"))
    Check.equal(env.names(env.path("d")), Seq.empty)
  }

  test("a listing of several pages has every entry once, in order") { env =>
    val many = 2345
    Threads.together((0 until 8).map { part => () =>
      for (n <- part until many by 8) env.write(env.path(f"d/f$n%05d"), Array.emptyByteArray)
    })
    val wanted = (0 until many).map(n => f"f$n%05d")
    Check.equal(env.names(env.path("d")), wanted)
    val pages = env.fs.listStatusIterator(env.path("d"))
    val found = Iterator.continually(pages).takeWhile(_.hasNext).map(_.next().getPath.getName)
    Check.equal(found.toSeq, wanted)
    Check.throws[NoSuchElementException](pages.next())
    Check.equal(env.fs.globStatus(env.path("d/f0100*")).map(_.getPath.getName).toSeq,
      wanted.slice(1000, 1010))
  }

  test("listFiles walks the tree with locations") { env =>
    for (name <- Seq("a", "d/b", "d/e/c")) env.write(env.path(name), Bytes.random(5))
    val files = env.fs.listFiles(env.base, true)
    val found = Iterator.continually(files).takeWhile(_.hasNext).map(_.next()).toVector
    Check.equal(found.map(_.getPath.getName).toSet, Set("a", "b", "c"))
    Check.that(found.forall(_.getBlockLocations.length == 1))
  }

  test("a content has a tag that a rename keeps and an overwrite changes") { env =>
    env.write(env.path("d/a"), Bytes.random(5))
    val tag = etag(env.fs.getFileStatus(env.path("d/a")))
    Check.that(tag.nonEmpty)
    Check.equal(etag(env.fs.listStatus(env.path("d")).head), tag)
    Check.equal(etag(env.fs.listLocatedStatus(env.path("d")).next()), tag)
    Check.equal(etag(env.fs.listFiles(env.path("d"), true).next()), tag)
    env.fs.rename(env.path("d/a"), env.path("d/b"))
    Check.equal(etag(env.fs.getFileStatus(env.path("d/b"))), tag)
    env.write(env.path("d/b"), Bytes.random(5), overwrite = true)
    Check.that(etag(env.fs.getFileStatus(env.path("d/b"))) != tag)
    for (capability <- Seq(CommonPathCapabilities.ETAGS_AVAILABLE,
        CommonPathCapabilities.ETAGS_PRESERVED_IN_RENAME, CommonPathCapabilities.FS_CHECKSUMS)) {
      Check.that(env.fs.hasPathCapability(env.base, capability), capability)
    }
  }

  test("files of the same bytes have the same checksum, and no others") { env =>
    for ((name, seed) <- Seq("a" -> 1, "b" -> 1, "c" -> 2)) {
      env.write(env.path(name), Bytes.random(100, seed))
    }
    val Seq(a, b, c) = Seq("a", "b", "c").map(name => env.fs.getFileChecksum(env.path(name)))
    Check.equal(a, b)
    Check.that(a != c)
    Check.equal(a.getAlgorithmName, "XXH64")
    Check.equal(env.fc.getFileChecksum(env.path("a")), a)
    Check.that(env.fs.getFileChecksum(env.path("a"), 10) == null)
    Check.throws[FileNotFoundException](env.fs.getFileChecksum(env.base))
  }

  private def etag(status: FileStatus): String = status.asInstanceOf[EtagSource].getEtag

  test("the content summary counts files, directories and bytes") { env =>
    env.write(env.path("a"), Bytes.random(5))
    env.write(env.path("d/b"), Bytes.random(7))
    env.fs.mkdirs(env.path("d/e"))
    val found = env.fs.getContentSummary(env.base)
    Check.equal((found.getFileCount, found.getDirectoryCount, found.getLength), (2L, 3L, 12L))
    val file = env.fs.getContentSummary(env.path("a"))
    Check.equal((file.getFileCount, file.getDirectoryCount, file.getLength), (1L, 0L, 5L))
  }

  test("relative paths start in the working directory") { env =>
    val fs = org.apache.hadoop.fs.FileSystem.newInstance(env.base.toUri, env.conf)
    fs.setWorkingDirectory(env.base)
    fs.create(new Path("rel/f")).close()
    Check.that(env.fs.exists(env.path("rel/f")))
    Check.that(fs.getHomeDirectory.toString.contains("/user/"))
    fs.close()
  }

  test("what does not exist in diskless is accepted and ignored") { env =>
    env.write(env.path("f"), Bytes.random(1))
    val before = env.fs.getFileStatus(env.path("f"))
    env.fs.setTimes(env.path("f"), 1, 1)
    env.fs.setOwner(env.path("f"), "a", "b")
    env.fs.setPermission(env.path("f"), before.getPermission)
    Check.equal(env.fs.getFileStatus(env.path("f")).getModificationTime,
      before.getModificationTime)
    Check.that(env.fs.getCanonicalServiceName == null)
  }

  test("statistics count bytes and operations") { env =>
    val before = stats(env)
    env.write(env.path("f"), Bytes.random(1000))
    env.read(env.path("f"))
    val after = stats(env)
    Check.equal((after._1 - before._1, after._2 - before._2), (1000L, 1000L))
    Check.that(after._3 > before._3 && after._4 > before._4)
  }

  private def stats(env: Env): (Long, Long, Int, Int) = {
    val found = org.apache.hadoop.fs.FileSystem.getStatistics("diskless", env.fs.getClass)
    (found.getBytesRead, found.getBytesWritten, found.getReadOps, found.getWriteOps)
  }
}
