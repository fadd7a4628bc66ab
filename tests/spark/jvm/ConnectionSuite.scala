package io.diskless.spark

import java.io.{DataInputStream, DataOutputStream, InterruptedIOException}
import java.net.{InetAddress, ServerSocket, Socket}
import java.util.concurrent.{ConcurrentLinkedQueue, CountDownLatch, TimeUnit}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.security.AccessControlException

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

  test("a silent agent costs one attempt and is said so") { env =>
    withGateway { gateway =>
      val conf = new Configuration(env.conf)
      conf.set("fs.diskless.gateways", gateway.address)
      conf.set("fs.diskless.cluster", "fake")
      conf.set("fs.diskless.timeout", "600ms")
      val caller = Clusters.find("", conf)
      val began = System.nanoTime()
      val error = Check.throws[DisklessException](
        caller.call(Kind.Stat, Messages.path("/a"), "stat /a"))
      val seconds = (System.nanoTime() - began) / 1e9
      Check.equal(error.reason, Errors.DeadlineExceeded)
      Check.that(error.getMessage.contains("did not answer in time"), error.getMessage)
      Check.that(seconds < 3, s"it took $seconds s")
    }
  }

  test("a wrong secret is said in one line") { env =>
    val conf = new Configuration(env.conf)
    conf.set("fs.diskless.secret", "wrong")
    conf.set("fs.diskless.name", "other")
    val fs = org.apache.hadoop.fs.FileSystem.newInstance(new Path("diskless:///").toUri, conf)
    val error = Check.throws[AccessControlException](fs.exists(new Path("/a")))
    Check.that(error.getMessage.contains("fs.diskless.secret"), error.getMessage)
    Check.that(!error.getMessage.contains('\n'))
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
    Check.that(failure("gateways" -> "h:1", "secret" -> "").contains("fs.diskless.secret"))
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

/** Greets, notes what it is asked, and answers when told to. */
private final class FakeGateway {
  private val server = new ServerSocket(0, 10, InetAddress.getLoopbackAddress)
  private val asked = new ConcurrentLinkedQueue[(String, Long)]
  @volatile private var socket: Socket = _

  val address: String = s"127.0.0.1:${server.getLocalPort}"

  private val accepting = new Thread(() => accept())
  accepting.setDaemon(true)
  accepting.start()

  def connect(): Connection = {
    val peer = Peer(0, address, "", "localhost", up = true)
    val door = new Door(peer, "", "secret", "test", _ => (), (_, _) => ())
    door.greeted.get(20, TimeUnit.SECONDS)
  }

  def await(count: Int): Unit = Threads.eventually(asked.size >= count)

  def answer(path: String, payloadBytes: Int = 0, byPieces: Boolean = false): Unit = {
    var found: Option[(String, Long)] = None
    Threads.eventually {
      found = asked.toArray(Array.empty[(String, Long)]).find(_._1 == path)
      found.isDefined
    }
    val frame = reply(found.get._2, "{}".getBytes, Bytes.random(payloadBytes))
    if (byPieces) frame.grouped(7777).foreach(send) else send(frame)
  }

  def send(bytes: Array[Byte]): Unit = {
    socket.getOutputStream.write(bytes)
    socket.getOutputStream.flush()
  }

  def hangUp(): Unit = socket.close()

  def close(): Unit = {
    server.close()
    if (socket != null) socket.close()
  }

  private def accept(): Unit =
    try while (true) {
      socket = server.accept()
      val reading = new Thread(() => read(socket))
      reading.setDaemon(true)
      reading.start()
    } catch { case _: java.net.SocketException => () }

  private def read(socket: Socket): Unit =
    try {
      val in = new DataInputStream(socket.getInputStream)
      while (true) {
        in.skipNBytes(3)
        val kind = in.readUnsignedByte()
        in.skipNBytes(4)
        val request = in.readLong()
        val meta = new Array[Byte](in.readInt())
        val payloadBytes = in.readInt()
        in.skipNBytes(Frames.ChecksumBytes)
        in.readFully(meta)
        in.skipNBytes(payloadBytes)
        if (kind == Kind.Hello) {
          val welcome = s"""{"cluster": "fake", "slot": 0, "agents": [{"slot": 0,
            "gateway": "$address", "socket": "", "host": "localhost", "up": true}]}"""
          send(reply(request, welcome.getBytes, Array.emptyByteArray))
        } else asked.add(Messages.decode(meta).path("path").asText -> request)
      }
    } catch { case _: java.io.IOException => () }

  private def reply(request: Long, meta: Array[Byte], payload: Array[Byte]): Array[Byte] = {
    val bytes = new java.io.ByteArrayOutputStream
    val out = new DataOutputStream(bytes)
    out.writeShort(0xD15C)
    out.write(Frames.Version)
    out.write(Kind.Done)
    out.writeShort(Frames.NoLeader)
    out.writeShort(1)
    out.writeLong(request)
    out.writeInt(meta.length)
    out.writeInt(payload.length)
    val checksum = new Checksum
    for (part <- Seq(bytes.toByteArray, meta, payload)) checksum.update(part, 0, part.length)
    out.writeLong(checksum.toLong)
    out.write(meta)
    out.write(payload)
    bytes.toByteArray
  }
}
