package io.diskless.spark

import java.io.{FileNotFoundException, InterruptedIOException, IOException}
import java.nio.file.Files

import org.apache.hadoop.fs.{FileAlreadyExistsException, Path, PathFilter}
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CheckpointFileManager, ChecksumCheckpointFileManager}

/** The invariants of Spark's CheckpointFileManagerSuite, and what makes ours a fast path. */
class CheckpointSuite extends Suite {
  test("mkdirs, list, createAtomic, open, delete, exists") { env =>
    contract(new DisklessCheckpointFileManager(env.base, env.conf), env.base)
  }

  test("the same with Spark's checksums around it") { env =>
    for (threads <- Seq(0, 4)) {
      val base = env.path(s"t$threads")
      env.fs.mkdirs(base)
      contract(checksummed(env, threads), base)
    }
  }

  test("the same for a path outside of diskless") { env =>
    val local = Files.createTempDirectory("diskless")
    val base = new Path(local.toUri)
    val manager = new DisklessCheckpointFileManager(base, env.conf)
    Check.that(manager.isLocal)
    contract(manager, base)
    base.getFileSystem(env.conf).delete(base, true)
  }

  test("the same with streams that are aborted, as spark-hadoop-cloud's manager does") { env =>
    val manager = new AbortableManager(env.base, env.conf)
    contract(manager, env.base)
    Check.equal(manager.swallowed, None)
  }

  test("that manager is refused when it creates what is there, and replaces nothing later") { env =>
    val manager = new AbortableManager(env.base, env.conf)
    val early = manager.createAtomic(env.path("0"), overwriteIfPossible = false)
    early.write(Bytes.random(1))
    env.write(env.path("0"), Bytes.random(2))
    Check.throws[FileAlreadyExistsException](
      manager.createAtomic(env.path("0"), overwriteIfPossible = false))
    early.close()
    Check.that(manager.swallowed.isDefined)
    Check.equal(env.read(env.path("0")), Bytes.random(2))
  }

  test("Spark picks the manager that the configuration names") { env =>
    val conf = new org.apache.hadoop.conf.Configuration(env.conf)
    val name = classOf[DisklessCheckpointFileManager].getName
    conf.set("spark.sql.streaming.checkpointFileManagerClass", name)
    Check.equal(CheckpointFileManager.create(env.base, conf).getClass.getName, name)
  }

  test("the checkpoint directory is made and qualified") { env =>
    val path = new Path(env.path("new/checkpoint").toUri.getPath)
    val qualified = new Path(env.base, path)
    val made = new DisklessCheckpointFileManager(qualified, env.conf).createCheckpointDirectory()
    Check.equal(made, env.fs.makeQualified(qualified))
    Check.that(env.fs.getFileStatus(made).isDirectory)
  }

  test("a commit leaves one file and no other name") { env =>
    val manager = new DisklessCheckpointFileManager(env.base, env.conf)
    for (n <- 0 until 5) {
      val out = manager.createAtomic(env.path(n.toString), overwriteIfPossible = false)
      out.write(Bytes.random(100))
      Check.equal(manager.list(env.base).length, n)
      out.close()
      Check.equal(manager.list(env.base).length, n + 1)
    }
  }

  test("a large file is cancelled or committed whole") { env =>
    val manager = new DisklessCheckpointFileManager(env.base, env.conf)
    val data = Bytes.random(9 << 20)
    for (commits <- Seq(false, true)) {
      val out = manager.createAtomic(env.path("snapshot"), overwriteIfPossible = true)
      out.write(data)
      if (commits) out.close() else out.cancel()
      out.cancel()
      out.close()
      Check.equal(manager.exists(env.path("snapshot")), commits)
    }
    Check.equal(env.read(env.path("snapshot")), data)
  }

  test("a refused commit is a FileAlreadyExistsException and stays refused") { env =>
    val manager = new DisklessCheckpointFileManager(env.base, env.conf)
    env.write(env.path("0"), Bytes.random(1))
    val out = manager.createAtomic(env.path("0"), overwriteIfPossible = false)
    out.write(Bytes.random(2))
    Check.throws[FileAlreadyExistsException](out.close())
    out.cancel()
    Check.equal(env.read(env.path("0")), Bytes.random(1))
  }

  test("a thread that is interrupted before it commits gets InterruptedIOException") { env =>
    val manager = new DisklessCheckpointFileManager(env.base, env.conf)
    val out = manager.createAtomic(env.path("0"), overwriteIfPossible = false)
    out.write(1)
    Thread.currentThread().interrupt()
    Check.throws[InterruptedIOException](out.close())
    out.cancel() // With the interrupt still pending, as Spark does.
    Check.that(Thread.interrupted())
    manager.createAtomic(env.path("1"), overwriteIfPossible = false).close()
    Check.that(manager.exists(env.path("1")))
  }

  private def checksummed(env: Env, threads: Int): CheckpointFileManager =
    new ChecksumCheckpointFileManager(
      new DisklessCheckpointFileManager(env.base, env.conf), true, threads, false)

  private def contract(manager: CheckpointFileManager, base: Path): Unit = {
    val directory = new Path(base, "dir/subdir/subsubdir")
    Check.that(!manager.exists(directory))
    manager.mkdirs(directory)
    Check.that(manager.exists(directory))
    manager.mkdirs(directory)
    val all: PathFilter = (_: Path) => true
    val none: PathFilter = (_: Path) => false
    Check.that(manager.list(base, all).exists(_.getPath.getName == "dir"))
    Check.equal(manager.list(base, none).length, 0)
    Check.throws[FileNotFoundException](manager.list(new Path(base, "no")))

    val first = new Path(directory, "file")
    put(manager, first, 1, overwrite = false, commit = false)
    Check.that(!manager.exists(first))
    put(manager, first, 2, overwrite = false)
    Check.equal(get(manager, first), 2)
    Check.throws[FileAlreadyExistsException](put(manager, first, 3, overwrite = false))
    Check.equal(get(manager, first), 2)

    val second = new Path(directory, "file2")
    put(manager, second, 4, overwrite = true, commit = false)
    Check.that(!manager.exists(second))
    put(manager, second, 5, overwrite = true)
    Check.equal(get(manager, second), 5)
    put(manager, second, 6, overwrite = true)
    Check.equal(get(manager, second), 6)

    manager.delete(second)
    Check.that(!manager.exists(second))
    Check.throws[IOException](manager.open(second))
    manager.delete(second)
    manager.delete(directory)
    Check.that(!manager.exists(directory))
    manager.close()
  }

  private def put(
      manager: CheckpointFileManager, path: Path, content: Int, overwrite: Boolean,
      commit: Boolean = true): Unit = {
    val out = manager.createAtomic(path, overwrite)
    out.writeInt(content)
    if (commit) out.close() else out.cancel()
  }

  private def get(manager: CheckpointFileManager, path: Path): Int = {
    val in = manager.open(path)
    try in.readInt()
    finally in.close()
  }
}
