package io.diskless.spark

import java.io.{ByteArrayOutputStream, DataInputStream, DataOutputStream, IOException}
import java.net.{InetAddress, ServerSocket, Socket}
import java.util.concurrent.{ConcurrentLinkedQueue, TimeUnit}
import javax.net.ssl.SSLContext

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

/** Whom one finds where an agent is expected. */
private[spark] trait Manner {
  /** The reply to `hello`: its kind and its meta. */
  def challenge(gateway: FakeGateway, hello: JsonNode): (Int, String)
}

private[spark] object Manner {
  /** Has the key of whoever knocks. */
  object Honest extends Manner {
    override def challenge(gateway: FakeGateway, hello: JsonNode): (Int, String) = {
      val nonce = "0123456789abcdef" * 2
      val proof = FakeGateway.Credential.prove("agent", "gateway", FakeGateway.Cluster,
        gateway.slot.toString, hello.path("nonce").asText, nonce, hello.path("claims").asText, "")
      (Kind.Done, s"""{"slot": ${gateway.slot}, "nonce": "$nonce", "proof": "$proof"}""")
    }
  }

  /** Always answers the same, whoever knocks. */
  final class Fixed(kind: Int, meta: String) extends Manner {
    override def challenge(gateway: FakeGateway, hello: JsonNode): (Int, String) = (kind, meta)
  }

  /** Has no key. */
  def impostor: Manner = new Fixed(
    Kind.Done, s"""{"slot": 0, "nonce": "${"a" * 32}", "proof": "${"0" * 64}"}""")

  def refusing(message: String): Manner = new Fixed(Kind.Refused,
    s"""{"reason": "Unauthorized", "message": "$message", "retryable": false}""")

  /** Answers a knock with the knock: it has no other nonce and proof than the caller's own. */
  object Mirror extends Manner {
    override def challenge(gateway: FakeGateway, hello: JsonNode): (Int, String) = {
      val nonce = hello.path("nonce").asText
      (Kind.Done, s"""{"slot": 0, "nonce": "$nonce", "proof": "$nonce$nonce"}""")
    }
  }
}

/** Greets in its manner, notes what it is asked, and answers when told to. With `tls` its door
  * is encrypted.
  */
private[spark] final class FakeGateway(
    manner: Manner = Manner.Honest, val slot: Int = 0, tls: Option[SSLContext] = None) {
  private val server = {
    val loopback = InetAddress.getLoopbackAddress
    tls.fold(new ServerSocket(0, Backlog, loopback))(
      _.getServerSocketFactory.createServerSocket(0, Backlog, loopback))
  }
  private def Backlog = 200
  private val asked = new ConcurrentLinkedQueue[(String, Long)]
  /** All frames that came, by kind and meta. */
  val frames = new ConcurrentLinkedQueue[(Int, JsonNode)]
  private val sockets = new ConcurrentLinkedQueue[Socket]
  /** What it tells of others, beside itself. */
  @volatile var others: Seq[FakeGateway] = Nil
  @volatile private var socket: Socket = _
  /** How the last connection ended: "" in order, else what went wrong. */
  @volatile var ending: Option[String] = None

  val address: String = s"127.0.0.1:${server.getLocalPort}"

  def peer: Peer = Peer(slot, address, "", "localhost", up = true)

  private val accepting = new Thread(() => accept())
  accepting.setDaemon(true)
  accepting.start()

  def greeting(trust: Option[Trust] = None, peer: Peer = peer): Greeting = new Greeting(
    peer, Identity("fake", FakeGateway.Credential, trust), "test", Resolver.Names,
    _ => (), (_, _) => ())

  def connect(trust: Option[Trust] = None): Connection =
    greeting(trust).greeted.get(20, TimeUnit.SECONDS)

  def await(count: Int): Unit = Threads.eventually(asked.size >= count)

  def kinds: Seq[Int] = frames.asScala.map(_._1).toSeq

  def connections: Int = sockets.size

  def answer(path: String, payloadBytes: Int = 0, byPieces: Boolean = false): Unit = {
    var found: Option[(String, Long)] = None
    Threads.eventually {
      found = asked.toArray(Array.empty[(String, Long)]).find(_._1 == path)
      found.isDefined
    }
    val frame = pack(found.get._2, Kind.Done, "{}".getBytes, Bytes.random(payloadBytes))
    if (byPieces) frame.grouped(7777).foreach(send) else send(frame)
  }

  def send(bytes: Array[Byte]): Unit = write(socket, bytes)

  def hangUp(): Unit = socket.close()

  def close(): Unit = {
    server.close()
    sockets.forEach(_.close())
  }

  private def accept(): Unit =
    try while (true) {
      socket = server.accept()
      sockets.add(socket)
      socket.setTcpNoDelay(true)
      val own = socket
      val reading = new Thread(() => read(own))
      reading.setDaemon(true)
      reading.start()
    } catch { case _: java.net.SocketException => () }

  private def read(socket: Socket): Unit =
    try {
      val in = new DataInputStream(socket.getInputStream)
      while (true) {
        val first = in.read()
        if (first < 0) {
          ending = Some("")
          return
        }
        if (first != 0xD1) throw new IOException("no frame")
        in.skipNBytes(2)
        val kind = in.readUnsignedByte()
        in.skipNBytes(4)
        val request = in.readLong()
        val meta = new Array[Byte](in.readInt())
        val payload = new Array[Byte](in.readInt())
        in.skipNBytes(Frames.ChecksumBytes)
        in.readFully(meta)
        in.readFully(payload)
        take(socket, kind, request, Messages.decode(meta), payload)
      }
    } catch {
      case error: IOException =>
        ending = Some(error.toString)
        socket.close()
    }

  private def take(
      socket: Socket, kind: Int, request: Long, meta: JsonNode, payload: Array[Byte]): Unit = {
    frames.add(kind -> meta)
    def reply(kind: Int, meta: String, payload: Array[Byte] = Array.emptyByteArray): Unit =
      write(socket, pack(request, kind, meta.getBytes, payload))
    kind match {
      case Kind.Hello =>
        val (kind, challenge) = manner.challenge(this, meta)
        reply(kind, challenge)
      case Kind.Prove =>
        val agents = (this +: others).map(agent => s"""{"slot": ${agent.slot},
          "gateway": "${agent.address}", "socket": "", "host": "localhost", "up": true}""")
        reply(Kind.Done, s"""{"cluster": "${FakeGateway.Cluster}", "slot": $slot,
          "agents": [${agents.mkString(", ")}]}""")
      case Kind.Write => reply(Kind.Done, "{}", payload) // An echo.
      case Kind.Summary => reply(Kind.Done, "{}")
      case Kind.Session => reply(Kind.Done, """{"session": 1}""")
      case Kind.Mkdirs => reply(Kind.Done, """{"created": true}""")
      case _ => asked.add(meta.path("path").asText -> request)
    }
  }

  private def write(socket: Socket, bytes: Array[Byte]): Unit = socket.synchronized {
    socket.getOutputStream.write(bytes)
    socket.getOutputStream.flush()
  }

  private def pack(
      request: Long, kind: Int, meta: Array[Byte], payload: Array[Byte]): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    val out = new DataOutputStream(bytes)
    out.writeShort(0xD15C)
    out.write(Frames.Version)
    out.write(kind)
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

private[spark] object FakeGateway {
  val Cluster = "fake"
  val Credential: Credential = io.diskless.spark.Credential.client(Cluster, "5a" * 32)

  def using[T](gateways: FakeGateway*)(body: => T): T =
    try body
    finally gateways.foreach(_.close())

  /** A caller that was told of these, in any order. */
  def caller(timeoutMs: Long, gateways: FakeGateway*): Caller = callerOf(timeoutMs, None,
    gateways.map(_.peer))

  def callerOf(
      timeoutMs: Long, trust: Option[Trust], peers: Seq[Peer],
      resolve: Resolver = Resolver.Names): Caller = new Caller(
    new Descriptor(Identity("fake", Credential, trust), peers),
    TimeUnit.MILLISECONDS.toNanos(timeoutMs), resolve)
}
