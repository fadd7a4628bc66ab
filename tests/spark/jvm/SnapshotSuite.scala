package io.diskless.spark

import java.io.{FileNotFoundException, IOException}

import org.apache.hadoop.fs.{CommonPathCapabilities, FileAlreadyExistsException, Path}
import org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CheckpointFileManager, FileContextBasedCheckpointFileManager}

/** Snapshots by Hadoop's own calls, and read by its paths. */
class SnapshotSuite extends Suite {
  test("a snapshot keeps what was there and is read below .snapshot") { env =>
    val (top, file) = (env.path("d"), env.path("d/e/f"))
    env.write(file, Bytes.random(100))
    val made = env.fs.createSnapshot(top, "s")
    Check.equal(made, env.fs.makeQualified(new Path(top, ".snapshot/s")))
    env.write(file, Bytes.random(7), overwrite = true)
    Check.equal(env.read(new Path(made, "e/f")), Bytes.random(100))
    Check.equal(env.read(file), Bytes.random(7))
    Check.equal(env.names(top), Seq("e"))
    Check.equal(env.names(new Path(top, ".snapshot")), Seq("s"))
    Check.that(env.fs.getFileStatus(made).isDirectory)
    Check.equal(env.fs.getContentSummary(made).getLength, 100L)
    env.fs.deleteSnapshot(top, "s")
    Check.throws[FileNotFoundException](env.fs.getFileStatus(made))
  }

  test("without a name it gets one") { env =>
    env.fs.mkdirs(env.path("d"))
    val made = env.fs.createSnapshot(env.path("d"))
    Check.equal(env.names(env.path("d/.snapshot")), Seq(made.getName))
    env.fs.deleteSnapshot(env.path("d"), made.getName)
  }

  test("a snapshot gets another name") { env =>
    env.fs.mkdirs(env.path("d"))
    env.fs.createSnapshot(env.path("d"), "a")
    env.fs.createSnapshot(env.path("d"), "b")
    Check.throws[FileAlreadyExistsException](env.fs.renameSnapshot(env.path("d"), "a", "b"))
    env.fs.renameSnapshot(env.path("d"), "a", "c")
    Check.equal(env.names(env.path("d/.snapshot")), Seq("b", "c"))
    Check.throws[FileNotFoundException](env.fs.renameSnapshot(env.path("d"), "a", "x"))
    for (name <- Seq("b", "c")) env.fs.deleteSnapshot(env.path("d"), name)
  }

  test("what cannot be is refused with Hadoop's exceptions") { env =>
    env.write(env.path("f"), Bytes.random(1))
    env.fs.mkdirs(env.path("d"))
    Check.throws[IOException](env.fs.createSnapshot(env.path("f"), "s"))
    Check.throws[FileNotFoundException](env.fs.createSnapshot(env.path("no"), "s"))
    Check.throws[IOException](env.fs.createSnapshot(env.path("d"), "a/b"))
    env.fs.createSnapshot(env.path("d"), "s")
    Check.throws[FileAlreadyExistsException](env.fs.createSnapshot(env.path("d"), "s"))
    Check.throws[FileNotFoundException](env.fs.deleteSnapshot(env.path("d"), "t"))
    env.fs.deleteSnapshot(env.path("d"), "s")
  }

  test("nothing below .snapshot is written, moved or deleted") { env =>
    env.write(env.path("d/f"), Bytes.random(5))
    val made = env.fs.createSnapshot(env.path("d"), "s")
    val kept = new Path(made, "f")
    Check.throws[SnapshotAccessControlException](env.write(new Path(made, "g"), Bytes.random(1)))
    Check.throws[SnapshotAccessControlException](env.write(kept, Bytes.random(1), overwrite = true))
    Check.throws[SnapshotAccessControlException](env.fs.mkdirs(new Path(made, "e")))
    Check.throws[SnapshotAccessControlException](env.fs.delete(kept, false))
    Check.throws[SnapshotAccessControlException](env.fs.delete(made, true))
    Check.throws[SnapshotAccessControlException](env.fs.rename(kept, env.path("d/g")))
    Check.throws[SnapshotAccessControlException](
      env.fs.rename(env.path("d/f"), new Path(made, "g")))
    Check.equal(env.read(kept), Bytes.random(5))
    env.fs.deleteSnapshot(env.path("d"), "s")
  }

  test("a directory with snapshots stays where it is") { env =>
    env.write(env.path("d/e/f"), Bytes.random(5))
    env.fs.createSnapshot(env.path("d/e"), "s")
    for (held <- Seq("d", "d/e")) {
      val refused = Check.throws[DisklessException](env.fs.rename(env.path(held), env.path("x")))
      Check.equal(refused.reason, "HasSnapshots")
      Check.throws[IOException](env.fs.delete(env.path(held), true))
    }
    Check.equal(env.read(env.path("d/e/f")), Bytes.random(5))
    env.fs.deleteSnapshot(env.path("d/e"), "s")
    Check.that(env.fs.delete(env.path("d"), true))
  }

  test("a rename to a directory with snapshots moves into it") { env =>
    env.write(env.path("d/f"), Bytes.random(5))
    env.write(env.path("g"), Bytes.random(7))
    env.fs.createSnapshot(env.path("d"), "s")
    Check.that(env.fs.rename(env.path("g"), env.path("d")))
    Check.equal(env.names(env.path("d")), Seq("f", "g"))
    Check.that(!env.fs.rename(env.path("d"), env.path("d")))
    Check.that(!env.fs.rename(env.path("d"), env.path("d/e")))
    env.fs.deleteSnapshot(env.path("d"), "s")
  }

  test("the same by FileContext") { env =>
    env.write(env.path("d/f"), Bytes.random(9))
    val made = env.fc.createSnapshot(env.path("d"), "s")
    env.write(env.path("d/f"), Bytes.random(1), overwrite = true)
    val in = env.fc.open(new Path(made, "f"))
    try Check.equal(in.readAllBytes(), Bytes.random(9))
    finally in.close()
    env.fc.renameSnapshot(env.path("d"), "s", "t")
    Check.that(env.fc.util.exists(env.path("d/.snapshot/t/f")))
    env.fc.deleteSnapshot(env.path("d"), "t")
    Check.that(!env.fc.util.exists(env.path("d/.snapshot/t")))
  }

  test("checkpoint managers read a snapshot and write nothing to it") { env =>
    env.write(env.path("d/state/1.delta"), Bytes.random(5))
    val made = env.fs.createSnapshot(env.path("d"), "s")
    val state = new Path(made, "state")
    val managers = Seq[CheckpointFileManager](
      new DisklessCheckpointFileManager(made, env.conf),
      new FileContextBasedCheckpointFileManager(made, env.conf))
    for (manager <- managers) {
      Check.equal(manager.list(state).map(_.getPath.getName).toSeq, Seq("1.delta"))
      val in = manager.open(new Path(state, "1.delta"))
      try Check.equal(in.readAllBytes(), Bytes.random(5))
      finally in.close()
      Check.throws[SnapshotAccessControlException](manager.createCheckpointDirectory())
      Check.throws[SnapshotAccessControlException](manager.mkdirs(new Path(made, "new")))
      Check.throws[SnapshotAccessControlException](manager.delete(new Path(state, "1.delta")))
      for (overwrite <- Seq(false, true)) {
        Check.throws[SnapshotAccessControlException](
          manager.createAtomic(new Path(state, "2.delta"), overwrite).close())
      }
      Check.equal(env.names(state), Seq("1.delta"))
    }
    env.fs.deleteSnapshot(env.path("d"), "s")
  }

  test("a state that Spark only reads may be prepared for writing, as Spark does") { env =>
    env.write(env.path("d/state/1.delta"), Bytes.random(5))
    val made = env.fs.createSnapshot(env.path("d"), "s")
    val manager = new DisklessCheckpointFileManager(made, env.conf)
    manager.mkdirs(new Path(made, "state"))
    val out = manager.createAtomic(new Path(made, "state/2.delta"), overwriteIfPossible = true)
    out.write(Bytes.random(9))
    out.cancel()
    Check.throws[SnapshotAccessControlException](manager.mkdirs(new Path(made, "state/1.delta")))
    Check.equal(env.names(new Path(made, "state")), Seq("1.delta"))
    env.fs.deleteSnapshot(env.path("d"), "s")
  }

  test("it says that it has snapshots") { env =>
    val named = CommonPathCapabilities.FS_SNAPSHOTS
    Check.that(env.fs.hasPathCapability(env.base, named))
    Check.that(env.fc.hasPathCapability(env.base, named))
  }
}
