package io.diskless.spark

import java.io.FileNotFoundException
import java.util.EnumSet

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  CreateFlag, FileContext, FileRange, FileSystem, Options, Path}
import org.apache.hadoop.fs.Options.CreateOpts
import org.apache.hadoop.security.AccessControlException

import scala.jdk.CollectionConverters._

/** What tokens open and what not. tests/spark/conftest.py puts some into the configuration, for
  * `/rights/own` alone: `own` reads and writes, `reader` reads, `expired` has.
  */
class RightsSuite extends Suite {
  import RightsSuite._

  test("below its path a token opens everything") { env =>
    val fs = fileSystem(env, "own")
    val (file, moved) = (new Path(Own, "a/b"), new Path(Own, "c"))
    write(fs, file, Bytes.random(100))
    Check.equal(read(fs, file), Bytes.random(100))
    Check.that(fs.rename(file, moved))
    Check.equal(fs.listStatus(new Path(Own)).map(_.getPath.getName).toSeq, Seq("a", "c"))
    Check.equal(fs.getContentSummary(new Path(Own)).getLength, 100L)
    Check.that(fs.delete(moved, false))
    Check.that(fs.delete(new Path(Own, "a"), true))
  }

  test("bytes of large files are read here and there, by who may") { env =>
    val fs = fileSystem(env, "own")
    val (file, data) = (new Path(Own, "large"), Bytes.random(5 << 20))
    write(fs, file, data)
    for (reader <- Seq(fs, fileSystem(env, "reader"))) {
      Check.equal(read(reader, file), data)
      val in = reader.open(file)
      val piece = new Array[Byte](1000000)
      in.readFully(777777, piece)
      Check.equal(piece, data.slice(777777, 1777777))
      val ranges = Seq(10, 2000000, 4999999).map(at => FileRange.createFileRange(at, 200000))
      in.readVectored(ranges.asJava, java.nio.ByteBuffer.allocate(_))
      for (range <- ranges) {
        val at = range.getOffset.toInt
        Check.equal(range.getData.get().array, data.slice(at, at + 200000))
      }
      in.close()
    }
    fs.delete(file, false)
  }

  test("elsewhere everything is refused as access, in one line that names the token") { env =>
    val (theirs, other) = (new Path("diskless:///rights/theirs"), new Path("/rights/theirs/f"))
    write(env.fs, other, Bytes.random(3))
    write(env.fs, new Path(Own, "f"), Bytes.random(3))
    val fs = fileSystem(env, "own")
    val manager = new DisklessCheckpointFileManager(theirs, conf(env, "own"))
    val refused = Seq[() => Any](
      () => fs.open(other), () => write(fs, other, Bytes.random(1)), () => fs.listStatus(theirs),
      () => fs.getFileStatus(other), () => fs.exists(other), () => fs.mkdirs(theirs),
      () => fs.delete(other, false),
      () => fs.rename(new Path(Own, "f"), new Path("/rights/theirs/g")),
      () => fs.rename(other, new Path(Own, "g")),
      () => fs.createSnapshot(theirs, "s"), () => fs.getContentSummary(theirs),
      () => write(fs, new Path("/rights/own2/f"), Bytes.random(1)),
      () => write(fs, new Path("/rights/theirs/big"), Bytes.random(3 << 20)),
      () => manager.list(theirs), () => manager.mkdirs(new Path(theirs, "new")),
      () => manager.createAtomic(other, overwriteIfPossible = true).close())
    for (attempt <- refused) {
      val error = Check.throws[AccessControlException](attempt())
      Check.that(error.getMessage.contains("'own', which is for /rights/own"), error.getMessage)
      Check.that(!error.getMessage.contains('\n'), error.getMessage)
    }
    Check.equal(env.read(other), Bytes.random(3))
    Check.equal(env.names(other.getParent), Seq("f"))
  }

  test("who may only read changes nothing") { env =>
    val file = new Path(Own, "kept")
    write(env.fs, file, Bytes.random(3))
    val fs = fileSystem(env, "reader")
    Check.equal(read(fs, file), Bytes.random(3))
    for (attempt <- Seq[() => Any](
        () => write(fs, file, Bytes.random(1)), () => fs.delete(file, false),
        () => fs.mkdirs(new Path(Own, "d")), () => fs.rename(file, new Path(Own, "x")))) {
      val error = Check.throws[AccessControlException](attempt())
      Check.that(error.getMessage.contains("may only read"), error.getMessage)
    }
    Check.equal(env.read(file), Bytes.random(3))
  }

  test("above its path a token sees the way and nothing beside it") { env =>
    write(env.fs, new Path("/rights/secret/f"), Bytes.random(3))
    write(env.fs, new Path(Own, "f"), Bytes.random(3))
    val fs = fileSystem(env, "own")
    Check.equal(fs.listStatus(new Path("/")).map(_.getPath.getName).toSeq, Seq("rights"))
    Check.equal(fs.listStatus(new Path("/rights")).map(_.getPath.getName).toSeq, Seq("own"))
    Check.that(fs.getFileStatus(new Path("/rights")).isDirectory)
    Check.throws[FileNotFoundException](fs.getFileStatus(new Path(Own, "none")))
  }

  test("a FileContext is refused in the same way") { env =>
    val context = FileContext.getFileContext(env.base.toUri, conf(env, "own"))
    val other = new Path("/rights/theirs/by-context")
    Check.throws[AccessControlException](context.create(
      other, EnumSet.of(CreateFlag.CREATE), CreateOpts.createParent()).close())
    Check.throws[AccessControlException](context.getFileStatus(other))
    Check.throws[AccessControlException](
      context.rename(new Path(Own, "f"), other, Options.Rename.OVERWRITE))
  }

  test("an expired token says so") { env =>
    val fs = fileSystem(env, "expired")
    val error = Check.throws[AccessControlException](fs.exists(new Path(Own)))
    Check.that(error.getMessage.contains("the token 'expired' has expired"), error.getMessage)
    Check.that(error.getMessage.contains("fs.diskless.token"), error.getMessage)
    Check.that(!error.getMessage.contains('\n'), error.getMessage)
  }

  private def fileSystem(env: Env, token: String): FileSystem =
    FileSystem.newInstance(new Path("diskless:///").toUri, conf(env, token))
}

private object RightsSuite {
  private val Own = "/rights/own"

  def conf(env: Env, token: String): Configuration = {
    val conf = new Configuration(env.conf)
    conf.set("fs.diskless.token", env.conf.get(s"test.diskless.token.$token"))
    conf.set("fs.diskless.impl.disable.cache", "true")
    conf
  }

  private def write(fs: FileSystem, path: Path, data: Array[Byte]): Unit = {
    val out = fs.create(path, true)
    out.write(data)
    out.close()
  }

  private def read(fs: FileSystem, path: Path): Array[Byte] = {
    val in = fs.open(path)
    try in.readAllBytes()
    finally in.close()
  }
}
