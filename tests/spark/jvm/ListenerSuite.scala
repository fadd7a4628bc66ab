package io.diskless.spark

import java.io.IOException
import java.util.UUID
import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.apache.hadoop.fs.Path

/** What becomes of notes that nobody takes: nothing, and nobody waits. */
class ListenerSuite extends Suite {
  test("who may only read is told so once, and tells no more") { env =>
    val told = Notes.told(new Path("diskless:///rights/own"), RightsSuite.conf(env, "reader"))
    val (sent, dropped) = (Notes.sent.get, Notes.dropped.get)
    Notes.offer(told, UUID.randomUUID(), note(1))
    until("it was refused")(told.refused)
    Notes.offer(told, UUID.randomUUID(), note(2))
    lookedAt()
    Check.equal(Notes.sent.get, sent)
    until("one was dropped, and the last of another")(Notes.dropped.get == dropped + 2)
  }

  test("a cluster that cannot be found costs nothing but the notes") { env =>
    val told = new Notes.Told(new Path("/q"), throw new IOException("nowhere"))
    val dropped = Notes.dropped.get
    for (n <- 1 to 3) Notes.offer(told, UUID.randomUUID(), note(n))
    until("all were dropped")(Notes.dropped.get == dropped + 3)
    Check.that(!told.refused)
  }

  test("while the sender is held up, notes beyond the limit are dropped at once") { env =>
    val (held, release) = (new CountDownLatch(1), new CountDownLatch(1))
    val slow = new Notes.Told(new Path("/q"), {
      held.countDown()
      release.await(30, TimeUnit.SECONDS)
      throw new IOException("nowhere")
    })
    val dropped = Notes.dropped.get
    Notes.offer(slow, UUID.randomUUID(), note(0))
    Check.that(held.await(10, TimeUnit.SECONDS))
    try {
      for (n <- 1 to Notes.WaitingMax + 500) Notes.offer(slow, UUID.randomUUID(), note(n))
      Check.that(release.getCount == 1, "nobody waited for the sender")
      Check.equal(Notes.dropped.get, dropped + 500)
    } finally release.countDown()
    until("the rest was dropped too")(Notes.dropped.get == dropped + Notes.WaitingMax + 501)
  }

  private def note(batch: Long) = Messages.meta().put("batch", batch).put("time_ms", 1L)

  /** What was offered before has been looked at. */
  private def lookedAt(): Unit = {
    val last = new CountDownLatch(1)
    Notes.offer(new Notes.Told(new Path("/q"), { last.countDown(); throw new IOException }),
      UUID.randomUUID(), note(0))
    Check.that(last.await(10, TimeUnit.SECONDS))
  }

  private def until(what: String)(condition: => Boolean): Unit = {
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(15)
    while (!condition) {
      Check.that(System.nanoTime() < deadline, what)
      Thread.sleep(5)
    }
  }
}
