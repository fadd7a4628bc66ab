package io.diskless.spark

import java.io.{FileNotFoundException, IOException}
import java.util.EnumSet

import scala.jdk.CollectionConverters._

import org.apache.hadoop.HadoopIllegalArgumentException
import org.apache.hadoop.fs.{
  CreateFlag, FileAlreadyExistsException, FileContext, ParentNotDirectoryException}
import org.apache.hadoop.fs.Options.{CreateOpts, Rename}
import org.apache.hadoop.fs.permission.FsPermission

/** The same through FileContext, where renames have options and throw. */
class FileContextSuite extends Suite {
  test("files are made, read and deleted") { env =>
    create(env, "f", Bytes.random(100), CreateFlag.CREATE)
    Check.equal(read(env, "f"), Bytes.random(100))
    Check.that(env.fc.util.exists(env.path("f")))
    Check.equal(env.fc.getFileStatus(env.path("f")).getLen, 100L)
    Check.that(env.fc.delete(env.path("f"), false))
    Check.that(!env.fc.delete(env.path("f"), false))
    Check.throws[FileNotFoundException](env.fc.open(env.path("f")))
    Check.throws[FileNotFoundException](env.fc.getFileStatus(env.path("f")))
  }

  test("create flags decide about what is there") { env =>
    Check.throws[FileNotFoundException](create(env, "f", Bytes.random(1), CreateFlag.OVERWRITE))
    create(env, "f", Bytes.random(1), CreateFlag.CREATE)
    Check.throws[FileAlreadyExistsException](
      create(env, "f", Bytes.random(2), CreateFlag.CREATE))
    create(env, "f", Bytes.random(3), CreateFlag.CREATE, CreateFlag.OVERWRITE)
    create(env, "f", Bytes.random(4), CreateFlag.OVERWRITE)
    Check.equal(read(env, "f"), Bytes.random(4))
    Check.throws[UnsupportedOperationException](
      create(env, "f", Bytes.random(5), CreateFlag.CREATE, CreateFlag.APPEND))
  }

  test("what is there is refused when a file is created, before anything is written") { env =>
    create(env, "f", Bytes.random(1), CreateFlag.CREATE)
    Check.throws[FileAlreadyExistsException](
      env.fc.create(env.path("f"), EnumSet.of(CreateFlag.CREATE), CreateOpts.createParent()))
    Check.equal(read(env, "f"), Bytes.random(1))
  }

  test("and when it is closed, if it came meanwhile") { env =>
    val late = env.fc.create(env.path("f"), EnumSet.of(CreateFlag.CREATE), CreateOpts.createParent())
    create(env, "f", Bytes.random(1), CreateFlag.CREATE)
    late.write(Bytes.random(2))
    Check.throws[FileAlreadyExistsException](late.close())
    Check.equal(read(env, "f"), Bytes.random(1))
  }

  test("flags that make no sense are refused before anything is done") { env =>
    def open(flags: EnumSet[CreateFlag]): Any = env.fc.create(env.path("f"), flags)
    Check.throws[HadoopIllegalArgumentException](open(EnumSet.noneOf(classOf[CreateFlag])))
    Check.throws[HadoopIllegalArgumentException](
      open(EnumSet.of(CreateFlag.CREATE, CreateFlag.APPEND, CreateFlag.OVERWRITE)))
    Check.throws[FileNotFoundException](open(EnumSet.of(CreateFlag.APPEND)))
    Check.throws[UnsupportedOperationException](
      open(EnumSet.of(CreateFlag.CREATE, CreateFlag.APPEND)))
    Check.that(!env.fc.util.exists(env.path("f")))
  }

  test("a missing parent is refused, unless it shall be made") { env =>
    for (size <- Seq(10, 3 << 20)) { // one frame, and an upload
      val out = env.fc.create(env.path("no/f"), EnumSet.of(CreateFlag.CREATE))
      out.write(Bytes.random(size))
      Check.throws[FileNotFoundException](out.close())
      Check.that(!env.fc.util.exists(env.path("no")))
    }
    env.fc.create(env.path("no/f"), EnumSet.of(CreateFlag.CREATE), CreateOpts.createParent()).close()
    env.fc.create(env.path("no/g"), EnumSet.of(CreateFlag.CREATE)).close()
    Check.that(env.fc.util.exists(env.path("no/g")))
  }

  test("capacity and use are those of the agents") { env =>
    val before = env.fc.getFsStatus(env.path("."))
    Check.that(before.getCapacity > 0 && before.getCapacity < (1L << 50), s"${before.getCapacity}")
    Check.equal(before.getUsed + before.getRemaining, before.getCapacity)
    // Agents tell what they hold with their heartbeats. What earlier cases deleted is freed
    // meanwhile, so that one file alone may not be seen.
    for (n <- 0 until 4) create(env, s"f$n", Bytes.random(8 << 20), CreateFlag.CREATE)
    Threads.eventually(env.fs.getStatus(env.path(".")).getUsed >= before.getUsed + (7 << 20))
  }

  test("Spark's temporary file goes when its commit is refused, and no other file does") { env =>
    val temporary = ".7.0f8fad5b-d9cb-469f-a165-70867728950e.TID12.tmp"
    for (name <- Seq("7", temporary, ".mine.tmp")) {
      create(env, name, Bytes.random(1), CreateFlag.CREATE)
    }
    for (name <- Seq(temporary, ".mine.tmp")) {
      Check.throws[FileAlreadyExistsException](env.fc.rename(env.path(name), env.path("7")))
    }
    Check.that(!env.fc.util.exists(env.path(temporary)))
    Check.that(env.fc.util.exists(env.path(".mine.tmp")))
  }

  test("mkdir without parents needs them") { env =>
    val permission = FsPermission.getDirDefault
    Check.throws[FileNotFoundException](env.fc.mkdir(env.path("a/b"), permission, false))
    env.fc.mkdir(env.path("a/b"), permission, true)
    env.fc.mkdir(env.path("a/c"), permission, false)
    env.fc.mkdir(env.path("a/c"), permission, false)
    create(env, "f", Bytes.random(1), CreateFlag.CREATE)
    Check.throws[ParentNotDirectoryException](env.fc.mkdir(env.path("f/d"), permission, true))
    Check.throws[ParentNotDirectoryException](env.fc.mkdir(env.path("f/d"), permission, false))
    Check.throws[FileAlreadyExistsException](env.fc.mkdir(env.path("f"), permission, true))
  }

  test("mkdir without parents is one command") { _ =>
    val gateway = new FakeGateway
    FakeGateway.using(gateway) {
      new Store(FakeGateway.caller(60000, gateway), lenientSync = false)
        .mkdirs("/a/b", parents = false)
      val asked = gateway.frames.asScala.filter(_._2.has("path")).toSeq
      Check.equal(asked.map(_._1), Seq(Kind.Mkdirs))
      Check.that(!asked.head._2.path("parents").asBoolean(true))
    }
  }

  test("rename without overwrite refuses what is there") { env =>
    create(env, "a", Bytes.random(1), CreateFlag.CREATE)
    create(env, "b", Bytes.random(2), CreateFlag.CREATE)
    Check.throws[FileAlreadyExistsException](env.fc.rename(env.path("a"), env.path("b")))
    Check.throws[FileAlreadyExistsException](env.fc.rename(env.path("a"), env.path("a")))
    Check.throws[FileNotFoundException](env.fc.rename(env.path("no"), env.path("c")))
    Check.throws[FileNotFoundException](env.fc.rename(env.path("a"), env.path("no/c")))
    Check.throws[ParentNotDirectoryException](env.fc.rename(env.path("a"), env.path("b/c")))
    Check.equal(read(env, "b"), Bytes.random(2))
    env.fc.rename(env.path("a"), env.path("c"))
    Check.equal(read(env, "c"), Bytes.random(1))
  }

  test("rename with overwrite replaces a file or an empty directory of its kind") { env =>
    create(env, "a", Bytes.random(1), CreateFlag.CREATE)
    create(env, "b", Bytes.random(2), CreateFlag.CREATE)
    env.fc.rename(env.path("a"), env.path("b"), Rename.OVERWRITE)
    Check.equal(read(env, "b"), Bytes.random(1))
    Check.throws[FileAlreadyExistsException](
      env.fc.rename(env.path("b"), env.path("b"), Rename.OVERWRITE))
    for (name <- Seq("d", "e", "full/x")) env.fc.mkdir(env.path(name), null, true)
    env.fc.rename(env.path("d"), env.path("e"), Rename.OVERWRITE)
    Check.that(!env.fc.util.exists(env.path("d")))
    Check.throws[IOException](env.fc.rename(env.path("e"), env.path("full"), Rename.OVERWRITE))
    Check.throws[IOException](env.fc.rename(env.path("b"), env.path("e"), Rename.OVERWRITE))
    Check.throws[IOException](env.fc.rename(env.path("e"), env.path("b"), Rename.OVERWRITE))
    Check.throws[IOException](env.fc.rename(env.path("full"), env.path("full/y")))
  }

  test("listings are those of the file system") { env =>
    for (name <- Seq("a", "b", "d/c")) create(env, name, Bytes.random(1), CreateFlag.CREATE)
    Check.equal(env.fc.util.listStatus(env.base).map(_.getPath).toSeq,
      env.fs.listStatus(env.base).map(_.getPath).toSeq)
    val entries = env.fc.listStatus(env.base)
    Check.equal(Iterator.continually(entries).takeWhile(_.hasNext).map(_.next().getPath.getName)
      .toSeq, Seq("a", "b", "d"))
    Check.equal(env.fc.getFileBlockLocations(env.path("a"), 0, 1).length, 1)
  }

  test("many contexts share the connections of the JVM") { env =>
    val before = openSockets()
    for (n <- 0 until 200) {
      val context = FileContext.getFileContext(env.base.toUri, env.conf)
      Check.that(!context.util.exists(env.path(s"no$n")))
    }
    Check.that(openSockets() - before < 20, s"${openSockets() - before} more descriptors")
  }

  private def openSockets(): Int =
    java.nio.file.Path.of("/proc/self/fd").toFile.list().length

  private def create(env: Env, name: String, data: Array[Byte], flags: CreateFlag*): Unit = {
    val set = EnumSet.noneOf(classOf[CreateFlag])
    flags.foreach(set.add)
    val out = env.fc.create(env.path(name), set, CreateOpts.createParent())
    out.write(data)
    out.close()
  }

  private def read(env: Env, name: String): Array[Byte] = {
    val in = env.fc.open(env.path(name))
    try in.readAllBytes()
    finally in.close()
  }
}
