package io.diskless.spark

import java.io.{FileNotFoundException, IOException}

import org.apache.hadoop.fs.{FileAlreadyExistsException, ParentNotDirectoryException, Path}

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
