package io.diskless.spark

import java.io.InterruptedIOException
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.{AtomicBoolean, AtomicInteger}

import org.apache.hadoop.fs.FileAlreadyExistsException
import org.apache.hadoop.fs.Options.Rename

/** Many threads at once. */
class RaceSuite extends Suite {
  test("of eight writers without overwrite exactly one wins") { env =>
    val manager = new DisklessCheckpointFileManager(env.base, env.conf)
    for (size <- Seq(50, 2 << 20); round <- 0 until 10) {
      val path = env.path(s"$size-$round")
      val start = new CountDownLatch(8)
      val won = Threads.together((0 until 8).map { n => () =>
        val out = manager.createAtomic(path, overwriteIfPossible = false)
        out.write(Bytes.random(size, n))
        start.countDown()
        start.await()
        try {
          out.close()
          true
        } catch { case _: FileAlreadyExistsException => false }
      })
      Check.equal(won.count(identity), 1)
      Check.equal(env.read(path), Bytes.random(size, won.indexOf(true)))
    }
  }

  test("readers during overwrites see a whole version, never none") { env =>
    val manager = new DisklessCheckpointFileManager(env.base, env.conf)
    def version(n: Int) = Array.fill(100 + 3000 * (n % 50))(n.toByte)
    def write(n: Int): Unit = {
      val out = manager.createAtomic(env.path("f"), overwriteIfPossible = true)
      out.write(version(n))
      out.close()
    }
    write(0)
    checkReaders(env, () => (1 to 120).foreach(write)) { found =>
      Check.equal(found, version(found(0)))
    }
  }

  test("readers during renames with overwrite see a whole version, never none") { env =>
    def version(n: Int) = Array.fill(2000)(n.toByte)
    env.write(env.path("f"), version(0))
    val rename = () => (1 to 100).foreach { n =>
      env.write(env.path("tmp"), version(n), overwrite = true)
      env.fc.rename(env.path("tmp"), env.path("f"), Rename.OVERWRITE)
    }
    checkReaders(env, rename) { found => Check.equal(found, version(found(0))) }
  }

  test("interrupting threads disturbs no other on the same connection") { env =>
    val caller = Clusters.find(env.base.toUri.getAuthority, env.conf)
    def connection() = caller.take(bulk = false, caller.attempts("test").deadline)
    env.write(env.path("f"), Bytes.random(10))
    val before = connection()
    val interrupts = new AtomicInteger
    val done = new AtomicBoolean
    val victims = (0 until 4).map { n =>
      val thread = new Thread(() => {
        var round = 0
        while (!done.get) {
          try env.write(env.path(s"v$n-$round"), Bytes.random(200))
          catch {
            case _: InterruptedIOException =>
              Check.that(Thread.interrupted(), "the interrupt was swallowed")
              interrupts.incrementAndGet()
          }
          round += 1
        }
      })
      thread.start()
      thread
    }
    try {
      for (n <- 0 until 400) {
        victims(n % victims.size).interrupt()
        Check.equal(env.read(env.path("f")), Bytes.random(10))
        Check.that(env.fs.mkdirs(env.path(s"d$n")))
      }
    } finally done.set(true)
    victims.foreach(_.join(10000))
    Check.that(victims.forall(!_.isAlive))
    Check.that(interrupts.get > 20, s"only ${interrupts.get} interrupts hit a wait")
    Check.that(before.usable, "the connection was lost")
    Check.that(connection() eq before)
  }

  test("more mutations than a session remembers, with one that is late") { env =>
    val caller = Clusters.find(env.base.toUri.getAuthority, env.conf)
    val tries = caller.attempts("late")
    val late = caller.ticket(tries)
    Threads.together((0 until 8).map { n => () =>
      for (round <- 0 until 100) env.fs.mkdirs(env.path(s"$n/$round"))
    })
    val meta = Messages.path(env.path("late").toUri.getPath)
    late.stamp(meta)
    Check.that(caller.call(Kind.Mkdirs, meta, "late").json.path("created").asBoolean)
    Check.that(!caller.call(Kind.Mkdirs, meta, "late").json.path("error").asBoolean)
    caller.done(late)
    Check.that(env.fs.exists(env.path("late")))
  }

  private def checkReaders(env: Env, write: () => Unit)(check: Array[Byte] => Unit): Unit = {
    val done = new AtomicBoolean
    val reads = new AtomicInteger
    val readers = (0 until 3).map { _ => () =>
      while (!done.get) {
        check(env.read(env.path("f")))
        reads.incrementAndGet()
      }
    }
    val writer = () => try write() finally done.set(true)
    Threads.together(writer +: readers)
    Check.that(reads.get > 50, s"only ${reads.get} reads")
  }
}
