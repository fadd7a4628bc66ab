package io.diskless.spark

import java.io.{FileNotFoundException, IOException}
import java.util.EnumSet

import org.apache.hadoop.HadoopIllegalArgumentException
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  CommonPathCapabilities, CreateFlag, FileAlreadyExistsException, FileSystem,
  ParentNotDirectoryException, Path, StreamCapabilities}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.fs.statistics.{IOStatisticsSupport, StreamStatisticNames}

/** Hadoop's contract for making files, and what diskless promises beyond it. */
class CreateSuite extends Suite {
  private val mib = 1 << 20

  test("a file of any size reads back as it was written") { env =>
    for (size <- Seq(0, 1, 4095, 4096, 65536, mib - 1, mib, mib + 1, 5 * mib + 17)) {
      val data = Bytes.random(size)
      env.write(env.path(s"f$size"), data)
      Check.equal(env.read(env.path(s"f$size")), data)
      Check.equal(env.fs.getFileStatus(env.path(s"f$size")).getLen, size.toLong)
    }
  }

  test("bytes written one by one and in pieces are one file") { env =>
    val data = Bytes.random(3 * mib + 5)
    val out = env.fs.create(env.path("f"))
    for (at <- 0 until 5000) out.write(data(at))
    var at = 5000
    while (at < data.length) {
      val count = math.min(99991, data.length - at)
      out.write(data, at, count)
      at += count
    }
    Check.equal(out.getPos, data.length.toLong)
    out.close()
    Check.equal(env.read(env.path("f")), data)
  }

  test("a file appears when it is closed and not before") { env =>
    for (size <- Seq(100, 6 * mib)) {
      val path = env.path(s"f$size")
      val out = env.fs.create(path)
      out.write(Bytes.random(size))
      Check.that(!env.fs.exists(path))
      out.close()
      Check.that(env.fs.exists(path))
    }
  }

  test("parents are made as needed") { env =>
    env.write(env.path("a/b/c"), Bytes.random(3))
    Check.that(env.fs.getFileStatus(env.path("a/b")).isDirectory)
  }

  test("create without overwrite is refused at once if the file is there") { env =>
    env.write(env.path("f"), Bytes.random(1))
    Check.throws[FileAlreadyExistsException](env.fs.create(env.path("f"), false))
  }

  test("create without overwrite is refused on closing if the file came meanwhile") { env =>
    for (size <- Seq(10, 4 * mib)) {
      val path = env.path(s"f$size")
      val late = env.fs.create(path, false)
      late.write(Bytes.random(size, 1))
      env.write(path, Bytes.random(size, 2))
      Check.throws[FileAlreadyExistsException](late.close())
      late.close() // It is over: nothing happens any more.
      Check.equal(env.read(path), Bytes.random(size, 2))
    }
  }

  test("overwriting replaces the content") { env =>
    env.write(env.path("f"), Bytes.random(2 * mib, 1))
    env.write(env.path("f"), Bytes.random(7, 2), overwrite = true)
    Check.equal(env.read(env.path("f")), Bytes.random(7, 2))
  }

  test("a directory is not overwritten by a file") { env =>
    env.fs.mkdirs(env.path("d"))
    Check.throws[FileAlreadyExistsException](env.write(env.path("d"), Bytes.random(1), true))
    Check.throws[FileAlreadyExistsException](env.write(env.path("d"), Bytes.random(1)))
    Check.that(env.fs.getFileStatus(env.path("d")).isDirectory)
  }

  test("a file cannot be made below a file") { env =>
    env.write(env.path("f"), Bytes.random(1))
    Check.throws[ParentNotDirectoryException](env.write(env.path("f/g"), Bytes.random(1), true))
    Check.throws[ParentNotDirectoryException](env.write(env.path("f/g/h"), Bytes.random(1), true))
  }

  test("createNonRecursive needs the parent") { env =>
    def create(path: Path) = env.fs.createNonRecursive(
      path, FsPermission.getFileDefault, EnumSet.of(CreateFlag.CREATE), 4096, 1, 1 << 20, null)
    Check.throws[FileNotFoundException](create(env.path("no/f")))
    env.write(env.path("g"), Bytes.random(1))
    Check.throws[ParentNotDirectoryException](create(env.path("g/f")))
    create(env.path("f")).close()
    Check.that(env.fs.exists(env.path("f")))
  }

  test("the builder makes files and parents") { env =>
    val out = env.fs.createFile(env.path("a/b")).overwrite(false).recursive().build()
    out.write(5)
    out.close()
    Check.equal(env.read(env.path("a/b")), Array[Byte](5))
    Check.throws[FileAlreadyExistsException](
      env.fs.createFile(env.path("a/b")).overwrite(false).recursive().build())
  }

  test("an aborted file leaves nothing") { env =>
    for (size <- Seq(10, 6 * mib)) {
      val out = env.fs.create(env.path("f"))
      out.write(Bytes.random(size))
      Check.that(!out.abort().alreadyClosed)
      out.close()
      Check.throws[IOException](out.write(1))
      Check.that(!env.fs.exists(env.path("f")))
    }
    Check.that(env.fs.hasPathCapability(env.base, CommonPathCapabilities.ABORTABLE_STREAM))
  }

  test("close is idempotent and a write after it fails") { env =>
    val out = env.fs.create(env.path("f"))
    out.write(1)
    out.close()
    out.close()
    Check.throws[IOException](out.write(2))
    Check.equal(env.read(env.path("f")), Array[Byte](1))
  }

  test("an interrupted close commits nothing later") { env =>
    val out = env.fs.create(env.path("f"))
    out.write(Bytes.random(6 * mib))
    Thread.currentThread().interrupt()
    Check.throws[java.io.InterruptedIOException](out.close())
    Check.that(Thread.interrupted())
    out.close()
    Check.that(!env.fs.exists(env.path("f")))
  }

  test("nothing can be flushed on the way: the stream says so, and refuses") { env =>
    val out = env.fs.create(env.path("f"))
    Check.that(!out.hasCapability(StreamCapabilities.HFLUSH))
    Check.that(!out.hasCapability(StreamCapabilities.HSYNC))
    out.write(1)
    Check.throws[UnsupportedOperationException](out.hflush())
    val refused = Check.throws[UnsupportedOperationException](out.hsync())
    Check.that(refused.getMessage.contains(Store.LenientSyncKey), refused.getMessage)
    out.close()
    Check.equal(env.read(env.path("f")), Array[Byte](1))
  }

  test("a configuration may make flushes do nothing") { env =>
    val conf = new Configuration(env.conf)
    conf.setBoolean(Store.LenientSyncKey, true)
    val lenient = FileSystem.newInstance(env.base.toUri, conf)
    try {
      val out = lenient.create(env.path("f"))
      out.write(1)
      out.hflush()
      out.hsync()
      Check.that(!env.fs.exists(env.path("f")))
      out.close()
      Check.that(env.fs.exists(env.path("f")))
    } finally lenient.close()
  }

  test("flags that make no sense are refused before anything is done") { env =>
    def both(flags: EnumSet[CreateFlag]): Seq[() => Any] = Seq(
      () => env.fs.create(
        env.path("f"), FsPermission.getFileDefault, flags, 4096, 1.toShort, 1 << 20, null),
      () => env.fs.createNonRecursive(
        env.path("f"), FsPermission.getFileDefault, flags, 4096, 1, 1 << 20, null))
    for (open <- both(EnumSet.noneOf(classOf[CreateFlag])) ++ both(null) ++
        both(EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE, CreateFlag.APPEND))) {
      Check.throws[HadoopIllegalArgumentException](open())
    }
    for (open <- both(EnumSet.of(CreateFlag.OVERWRITE)) ++ both(EnumSet.of(CreateFlag.APPEND))) {
      Check.throws[FileNotFoundException](open())
    }
    Check.that(!env.fs.exists(env.path("f")))
  }

  test("createNonRecursive makes no parent that went away meanwhile") { env =>
    env.fs.mkdirs(env.path("d"))
    val out = env.fs.createNonRecursive(env.path("d/f"), FsPermission.getFileDefault,
      EnumSet.of(CreateFlag.CREATE), 4096, 1, 1 << 20, null)
    env.fs.delete(env.path("d"), true)
    Check.throws[FileNotFoundException](out.close())
    Check.that(!env.fs.exists(env.path("d")))
  }

  test("streams count what went through them") { env =>
    val out = env.fs.create(env.path("f"))
    out.write(Bytes.random(3 * mib))
    out.close()
    Check.equal(counter(out, StreamStatisticNames.STREAM_WRITE_BYTES), 3L * mib)
    val in = env.fs.open(env.path("f"))
    try {
      in.readFully(5, new Array[Byte](1000))
      Check.equal(counter(in, StreamStatisticNames.STREAM_READ_BYTES), 1000L)
    } finally in.close()
  }

  private def counter(stream: Any, name: String): Long =
    IOStatisticsSupport.retrieveIOStatistics(stream).counters.get(name)

  test("append, concat and truncate are unsupported") { env =>
    env.write(env.path("f"), Bytes.random(1))
    Check.throws[UnsupportedOperationException](env.fs.append(env.path("f")))
    Check.throws[UnsupportedOperationException](env.fs.truncate(env.path("f"), 0))
    Check.throws[UnsupportedOperationException](
      env.fs.concat(env.path("f"), Array(env.path("g"))))
  }

  test("a local file is copied into directories that do not exist") { env =>
    val local = java.nio.file.Files.createTempFile("diskless", ".sst")
    try {
      java.nio.file.Files.write(local, Bytes.random(3 * mib))
      env.fs.copyFromLocalFile(new Path(local.toUri), env.path("SSTs/x/1.sst"))
      Check.equal(env.read(env.path("SSTs/x/1.sst")), Bytes.random(3 * mib))
    } finally java.nio.file.Files.delete(local)
  }

  test("names may hold any characters") { env =>
    val names = Seq("a b", "k=1%2F2", "ü✓", "a+b&c", "50%", "x#y?z", "a;b,c", "'q'\"", "[g]{h}*")
    for (name <- names) {
      val path = new Path(env.base, new Path(null, null, name))
      env.write(path, name.getBytes("UTF-8"))
      Check.equal(env.read(path), name.getBytes("UTF-8"))
    }
    Check.equal(env.names(env.base).toSet, names.toSet)
    for (status <- env.fs.listStatus(env.base)) {
      Check.equal(new String(env.read(status.getPath), "UTF-8"), status.getPath.getName)
    }
  }

  test("modification times come from one clock and never decrease") { env =>
    val times = (0 until 20).map { n =>
      env.write(env.path(s"f$n"), Bytes.random(1))
      env.fs.getFileStatus(env.path(s"f$n")).getModificationTime
    }
    Check.equal(times, times.sorted)
    Check.that(math.abs(times.last - System.currentTimeMillis()) < 60000)
  }
}
