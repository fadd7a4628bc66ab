package io.diskless.spark

import org.apache.hadoop.fs.Path

/** FileSystem.rename with two arguments, as HDFS does it. */
class RenameSuite extends Suite {
  test("a file moves to a new name") { env =>
    env.write(env.path("a"), Bytes.random(100))
    Check.that(env.fs.rename(env.path("a"), env.path("b")))
    Check.that(!env.fs.exists(env.path("a")))
    Check.equal(env.read(env.path("b")), Bytes.random(100))
    Check.equal(env.names(env.base), Seq("b"))
  }

  test("a directory moves with all that is in it") { env =>
    env.write(env.path("d/e/f"), Bytes.random(10))
    Check.that(env.fs.rename(env.path("d"), env.path("x")))
    Check.equal(env.read(env.path("x/e/f")), Bytes.random(10))
    Check.that(!env.fs.exists(env.path("d")))
  }

  test("onto a file it is refused and both stay") { env =>
    env.write(env.path("a"), Bytes.random(10, 1))
    env.write(env.path("b"), Bytes.random(10, 2))
    Check.that(!env.fs.rename(env.path("a"), env.path("b")))
    Check.equal(env.read(env.path("a")), Bytes.random(10, 1))
    Check.equal(env.read(env.path("b")), Bytes.random(10, 2))
    env.fs.mkdirs(env.path("d"))
    Check.that(!env.fs.rename(env.path("d"), env.path("b")))
  }

  test("into an existing directory it goes below that") { env =>
    env.write(env.path("a"), Bytes.random(10))
    env.write(env.path("d/old"), Bytes.random(1))
    env.write(env.path("src/in"), Bytes.random(2))
    Check.that(env.fs.rename(env.path("a"), env.path("d")))
    Check.that(env.fs.rename(env.path("src"), env.path("d")))
    Check.equal(env.names(env.path("d")), Seq("a", "old", "src"))
    Check.equal(env.read(env.path("d/src/in")), Bytes.random(2))
    env.write(env.path("a"), Bytes.random(10))
    Check.that(!env.fs.rename(env.path("a"), env.path("d")), "d/a was there")
  }

  test("a missing source or a missing parent of the target gives false") { env =>
    Check.that(!env.fs.rename(env.path("no"), env.path("b")))
    env.write(env.path("a"), Bytes.random(1))
    Check.that(!env.fs.rename(env.path("a"), env.path("no/b")))
    Check.that(!env.fs.rename(env.path("a"), env.path("a/b")))
    Check.that(env.fs.exists(env.path("a")))
  }

  test("below itself, onto itself, and the root") { env =>
    env.write(env.path("d/f"), Bytes.random(1))
    Check.that(!env.fs.rename(env.path("d"), env.path("d/e")))
    Check.that(!env.fs.rename(env.path("d"), env.path("d")))
    Check.that(env.fs.rename(env.path("d/f"), env.path("d/f")))
    Check.that(!env.fs.rename(new Path(env.base, "/"), env.path("r")))
    Check.equal(env.read(env.path("d/f")), Bytes.random(1))
  }

  test("what a rename completed is listed at once") { env =>
    env.fs.mkdirs(env.path("d"))
    for (n <- 0 until 50) {
      env.write(env.path(s"tmp$n"), Bytes.random(1))
      Check.that(env.fs.rename(env.path(s"tmp$n"), env.path(s"d/f$n")))
      Check.that(env.names(env.path("d")).contains(s"f$n"))
    }
    Check.equal(env.names(env.base), Seq("d"))
  }

  test("the committer's dance ends with the tasks' files in place") { env =>
    val pending = env.path("out/_temporary/0")
    for (n <- 0 until 3) env.write(new Path(pending, s"task$n/p$n"), Bytes.random(9))
    for (task <- env.fs.listStatus(pending); file <- env.fs.listStatus(task.getPath)) {
      Check.that(env.fs.rename(file.getPath, env.path(s"out/${file.getPath.getName}")))
    }
    Check.that(env.fs.delete(env.path("out/_temporary"), true))
    Check.equal(env.names(env.path("out")), Seq("p0", "p1", "p2"))
  }
}
