package io.diskless.spark

import java.io.InterruptedIOException
import java.net.InetSocketAddress
import java.util.concurrent.{CompletableFuture, CountDownLatch, TimeUnit}

import org.apache.hadoop.conf.Configuration

/** One connection against a gateway that does what the case says. */
class ConnectionSuite extends Suite {
  test("interrupting one who waits leaves the others' requests under way") { _ =>
    withGateway { gateway =>
      val connection = gateway.connect()
      val (held, other) = (stat("/hold"), stat("/fine"))
      connection.send(held, soon)
      val waiting = new CountDownLatch(1)
      var thrown: Throwable = null
      val victim = new Thread(() => {
        waiting.countDown()
        try soon.await(held.reply)
        catch { case error: Throwable => thrown = error }
      })
      victim.start()
      waiting.await()
      connection.send(other, soon)
      victim.interrupt()
      victim.join(10000)
      Check.that(thrown.isInstanceOf[InterruptedIOException], s"$thrown")
      gateway.answer("/fine")
      Check.that(soon.await(other.reply).isDefined)
      gateway.answer("/hold") // Nobody waits for it: it is dropped.
      connection.send(stat("/next"), soon)
      gateway.answer("/next")
      Check.that(connection.usable)
    }
  }

  test("all that is under way fails when the connection breaks") { _ =>
    withGateway { gateway =>
      val connection = gateway.connect()
      val requests = (0 until 50).map(n => stat(s"/$n"))
      requests.foreach(connection.send(_, soon))
      gateway.await(50)
      gateway.hangUp()
      for (request <- requests) {
        Check.equal(Check.throws[DisklessException](soon.await(request.reply)).reason,
          Errors.Unavailable)
      }
      val late = stat("/late")
      connection.send(late, soon)
      Check.throws[DisklessException](soon.await(late.reply))
      Check.that(!connection.usable)
    }
  }

  test("garbage breaks the connection and nothing else") { _ =>
    withGateway { gateway =>
      val connection = gateway.connect()
      val request = stat("/a")
      connection.send(request, soon)
      gateway.await(1)
      gateway.send(Array.fill[Byte](64)(7))
      val error = Check.throws[DisklessException](soon.await(request.reply))
      Check.that(error.getMessage.contains("garbled"), error.getMessage)
      Check.that(gateway.connect().usable)
    }
  }

  test("no more than 256 requests are under way") { _ =>
    withGateway { gateway =>
      val connection = gateway.connect()
      (0 until 256).foreach(n => connection.send(stat(s"/$n"), soon))
      val brief = new Deadline("test", System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(50))
      Check.throws[DisklessException](connection.send(stat("/256"), brief))
      gateway.await(256)
      gateway.answer("/0")
      connection.send(stat("/257"), soon)
      gateway.await(257)
    }
  }

  test("replies come in any order and in pieces") { _ =>
    withGateway { gateway =>
      val connection = gateway.connect()
      val requests = (0 until 20).map(n => stat(s"/$n"))
      requests.foreach(connection.send(_, soon))
      gateway.await(20)
      for (n <- 19 to 0 by -1) gateway.answer(s"/$n", payloadBytes = n * 30000, byPieces = true)
      for ((request, n) <- requests.zipWithIndex) {
        Check.equal(soon.await(request.reply).get.payload, Bytes.random(n * 30000))
      }
    }
  }

  test("a silent agent costs one attempt and is said so") { _ =>
    withGateway { gateway =>
      val error = Check.throws[DisklessException](
        FakeGateway.caller(4000, gateway).call(Kind.Stat, Messages.path("/a"), "stat /a"))
      Check.equal(error.reason, Errors.DeadlineExceeded)
      Check.that(error.getMessage.contains("did not answer in time"), error.getMessage)
    }
  }

  test("a name that is looked up for long ends at the deadline and holds up nobody") { _ =>
    withGateway { gateway =>
      val never = new CompletableFuture[InetSocketAddress]
      val resolve = new Resolver {
        override def apply(name: String): CompletableFuture[InetSocketAddress] =
          if (name.startsWith("slow")) never else Resolver.Names(name)
      }
      val slow = Peer(Messages.UnknownSlot, "slow.example:1", "", "", up = true)
      val error = Check.throws[DisklessException](
        FakeGateway.callerOf(600, None, Seq(slow), resolve).call(Kind.Stat, Messages.path("/a"), "stat /a"))
      Check.equal(error.reason, Errors.DeadlineExceeded)
      Check.that(error.getMessage.contains("did not greet in time"), error.getMessage)
      val both = FakeGateway.callerOf(6000, None, Seq(slow, gateway.peer), resolve)
      both.call(Kind.Summary, Messages.path("/a"), "summary /a")
    }
  }

  test("a name that nobody knows is an agent that cannot be reached") { _ =>
    val nobody = Peer(Messages.UnknownSlot, "no-such-host.invalid:1", "", "", up = true)
    val error = Check.throws[DisklessException](
      FakeGateway.callerOf(600, None, Seq(nobody)).call(Kind.Stat, Messages.path("/a"), "stat /a"))
    Check.equal(error.reason, Errors.DeadlineExceeded)
    Check.that(error.getMessage.contains("no-such-host.invalid:1"), error.getMessage)
  }

  test("bad settings get one line that says what to do") { env =>
    def failure(settings: (String, String)*): String = {
      val conf = new Configuration(env.conf)
      settings.foreach { case (key, value) => conf.set(s"fs.diskless.$key", value) }
      Check.throws[Exception](Clusters.find("", conf)).getMessage
    }
    Check.that(failure("timeout" -> "soon").contains("30s"))
    Check.that(failure("timeout" -> "-1").contains("30s"))
    Check.that(failure("gateways" -> "nowhere").contains("HOST:PORT"))
    Check.that(failure("gateways" -> "", "descriptor" -> "/no/such").contains("diskless up"))
    Check.that(failure("gateways" -> "h:1", "token" -> "").contains("fs.diskless.token"))
    Check.that(failure("authority" -> "bm90IG9uZQ==").contains("fs.diskless.authority"))
    val conf = new Configuration(env.conf)
    for ((authority, words) <- Seq(
        "no_name" -> Seq("HOST:PORT", "diskless:///path"),
        "nobody" -> Seq("'nobody'", "diskless up", "diskless:///path"))) {
      val said = Check.throws[Exception](Clusters.find(authority, conf)).getMessage
      words.foreach(word => Check.that(said.contains(word), said))
    }
  }

  private def soon = new Deadline("test", System.nanoTime() + TimeUnit.SECONDS.toNanos(20))

  private def stat(path: String): Request = Caller.request(Kind.Stat, Messages.path(path), Nil)

  private def withGateway(body: FakeGateway => Unit): Unit = {
    val gateway = new FakeGateway
    try body(gateway)
    finally gateway.close()
  }
}
