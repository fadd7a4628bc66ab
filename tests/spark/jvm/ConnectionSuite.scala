package io.diskless.spark

import java.io.InterruptedIOException
import java.util.concurrent.{CountDownLatch, TimeUnit}

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
        FakeGateway.caller(600, gateway).call(Kind.Stat, Messages.path("/a"), "stat /a"))
      Check.equal(error.reason, Errors.DeadlineExceeded)
      Check.that(error.getMessage.contains("did not answer in time"), error.getMessage)
    }
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
    Check.that(Check.throws[Exception](Clusters.find("no_name", conf)).getMessage
      .contains("HOST:PORT"))
    Check.that(Check.throws[Exception](Clusters.find("nobody", conf)).getMessage
      .contains("diskless up"))
  }

  private def soon = new Deadline("test", System.nanoTime() + TimeUnit.SECONDS.toNanos(20))

  private def stat(path: String): Request = Caller.request(Kind.Stat, Messages.path(path), Nil)

  private def withGateway(body: FakeGateway => Unit): Unit = {
    val gateway = new FakeGateway
    try body(gateway)
    finally gateway.close()
  }
}
