package io.diskless.spark

import java.io.IOException
import java.net.{InetSocketAddress, SocketAddress, StandardSocketOptions}
import java.nio.ByteBuffer
import java.nio.channels.{SelectionKey, SocketChannel}
import java.util.ArrayDeque
import java.util.concurrent.{CompletableFuture, Semaphore}
import javax.net.ssl.SSLEngine

import scala.collection.mutable
import scala.util.control.NonFatal

/** A reply that says yes. Its bytes belong to whoever asked. */
private[spark] final class Reply(val meta: Array[Byte], val payload: Array[Byte]) {
  lazy val json = Messages.decode(meta)
}

/** A request on its way. Who gives up waiting just forgets it: its reply is dropped.
  *
  * With `within` the agent knows how long somebody waits: if it is well and only cannot
  * answer yet, it says so in time, and is not taken for dead.
  */
private[spark] final class Request(
    val kind: Int, val meta: Array[Byte], val payload: Seq[ByteBuffer], val within: Int = 0) {
  val reply = new CompletableFuture[Reply]
}

/** One stream of frames to one gateway, with many requests under way.
  *
  * Everything but `send`, `close` and the fields that others read happens on the I/O thread.
  * It never retries: when anything about the stream is wrong it closes itself, and all that
  * was under way, and all that comes later, fails with Unavailable, or with Garbled if a frame
  * is not as it was sent; nothing of such a frame is used. A request's payload is sent from
  * where it is and must not change until it is answered. With `tls` all is encrypted, and
  * the peer has shown its certificate before anything is sent.
  */
private[spark] final class Connection(
    io: IoThread, val peer: Peer, where: SocketAddress, tls: Option[SSLEngine],
    onLost: () => Unit)
    extends IoThread.Handler {
  import Connection._

  @volatile var leader: Int = Frames.NoLeader
  @volatile var roster: Int = 0
  /** When the last byte came, as System.nanoTime. */
  @volatile var heardAt: Long = System.nanoTime()
  /** Whether the peer has proved to be an agent. Before, large frames are not taken from it. */
  @volatile var trusted: Boolean = false
  @volatile private var lost: DisklessException = _

  private val permits = new Semaphore(RequestsMax)
  private var channel: SocketChannel = _
  private var key: SelectionKey = _
  private var wire: Wire = _
  private var number = 0L
  private val underWay = mutable.LongMap.empty[Request]
  private val outgoing = new ArrayDeque[ByteBuffer]
  private val received = ByteBuffer.allocate(ReceiveBytes).flip()
  private var incoming: Incoming = _
  private val checksum = new Checksum

  io.execute(() => connect())

  def usable: Boolean = lost == null

  /** Hands a request over; waits, at most until `deadline`, only while too many are under way. */
  def send(request: Request, deadline: Deadline): Unit = {
    if (!deadline.acquire(permits)) {
      throw Errors.unavailable(s"$peer has $RequestsMax requests under way and answers none")
    }
    handOver(request)
  }

  /** Hands over a request whose answer nobody waits for, if it can be done at once. */
  def post(request: Request): Boolean = {
    val free = permits.tryAcquire()
    if (free) handOver(request)
    free
  }

  private def handOver(request: Request): Unit = {
    request.reply.whenComplete((_, _) => permits.release())
    io.execute(() => transmit(request))
  }

  /** Fails all that is under way. */
  def close(why: String): Unit = io.execute(() => break(why))

  // On the I/O thread.

  private def connect(): Unit = guarded {
    channel = where match {
      case address: InetSocketAddress if address.isUnresolved =>
        throw new IOException("unknown host")
      case _: InetSocketAddress =>
        val opened = SocketChannel.open()
        opened.setOption[java.lang.Boolean](StandardSocketOptions.TCP_NODELAY, true)
        opened.setOption[java.lang.Boolean](StandardSocketOptions.SO_KEEPALIVE, true)
        opened
      case _ => SocketChannel.open(java.net.StandardProtocolFamily.UNIX)
    }
    channel.configureBlocking(false)
    val connected = channel.connect(where)
    val interest = if (connected) SelectionKey.OP_READ else SelectionKey.OP_CONNECT
    key = channel.register(io.selector, interest, this)
    if (connected) begin()
  }

  private def begin(): Unit = {
    wire = tls match {
      case Some(engine) => new TlsWire(channel, engine, io, () => resume())
      case None => new PlainWire(channel)
    }
    flush()
  }

  /** Goes on with what waits in the wire; it may be lost by now. */
  private def resume(): Unit = if (lost == null) guarded(exchange())

  override def ready(key: SelectionKey): Unit = guarded {
    if (key.isValid && key.isConnectable && channel.finishConnect()) {
      key.interestOps(SelectionKey.OP_READ)
      begin()
    }
    if (key.isValid && key.isReadable) exchange()
    if (key.isValid && key.isWritable) flush()
  }

  private def transmit(request: Request): Unit =
    if (lost != null) request.reply.completeExceptionally(lost)
    else guarded {
      number += 1
      underWay.update(number, request)
      outgoing.add(Frames.pack(
        request.kind, request.within, number, request.meta, request.payload, checksum))
      request.payload.foreach(part => outgoing.add(part.duplicate()))
      if (wire != null) flush()
    }

  private def flush(): Unit = {
    val blocked = wire.send(outgoing)
    val interest = SelectionKey.OP_READ | (if (blocked) SelectionKey.OP_WRITE else 0)
    if (key.interestOps != interest) key.interestOps(interest)
  }

  private def exchange(): Unit = {
    receive()
    if (wire.isStirred) flush()
  }

  /** Takes what has come, but not for so long that other connections starve. */
  private def receive(): Unit = {
    var turn = 0
    var more = true
    while (more && turn < ReadsPerTurn) {
      val count = if (incoming != null && !incoming.complete) {
        wire.receive(incoming.rest)
      } else {
        received.compact()
        val read = wire.receive(received)
        received.flip()
        read
      }
      if (count < 0) throw new IOException(whyClosed)
      more = count > 0
      if (more) heardAt = System.nanoTime()
      parse()
      turn += 1
    }
    if (more && wire.holdsMore) io.again(() => resume())
  }

  private def whyClosed: String =
    if (received.remaining >= 2 && received.getShort(received.position()) == TlsAlert) {
      "expects TLS: set fs.diskless.authority to the certificate of its cluster's authority"
    } else "closed the connection"

  private def parse(): Unit = {
    while (true) {
      if (incoming == null) {
        if (received.remaining < Frames.HeaderBytes) return
        val packed = new Array[Byte](Frames.HeaderBytes)
        received.get(received.position(), packed)
        Frames.unpack(received) match {
          case Left(wrong) => throw Errors.garbled(s"garbled reply: $wrong")
          case Right(header) if !trusted && header.bytes > StrangersBytesMax =>
            throw Errors.garbled(s"garbled reply: ${header.bytes} bytes before any proof")
          case Right(header) => incoming = new Incoming(header, packed)
        }
      }
      incoming.take(received)
      if (!incoming.complete) return
      val whole = incoming
      incoming = null
      deliver(whole)
    }
  }

  private def deliver(frame: Incoming): Unit = {
    check(frame)
    leader = frame.header.leader
    roster = frame.header.roster
    underWay.remove(frame.header.request) match {
      case Some(request) if frame.header.kind == Kind.Done =>
        request.reply.complete(new Reply(frame.meta, frame.payload))
      case Some(request) if frame.header.kind == Kind.Refused =>
        request.reply.completeExceptionally(refusal(frame))
      case _ if frame.header.kind == Kind.Refused =>
        // A gateway that refuses the connection itself has no request to name.
        throw new IOException(s"refused the connection: ${refusal(frame).getMessage}")
      case _ => throw new IOException(s"sent kind ${frame.header.kind}, never asked for")
    }
  }

  private def check(frame: Incoming): Unit =
    if (frame.header.version != Frames.Version) {
      // A gateway that cannot read our version answers in the first one.
      val why = if (frame.header.kind == Kind.Refused) refusal(frame).getMessage
        else s"it answers in version ${frame.header.version}"
      throw new IOException(s"refused the connection: $why")
    } else if (!frame.isSound(checksum)) {
      throw Errors.garbled("sent a reply that was damaged on its way")
    }

  private def refusal(frame: Incoming): DisklessException =
    Messages.refusal(Messages.decode(frame.meta))

  private def guarded(work: => Unit): Unit =
    try work
    catch {
      case NonFatal(error) =>
        onLost() // Before anybody who waits hears of it, and asks the next one.
        break(describe(error), error)
    }

  private def break(why: String, cause: Throwable = null): Unit = if (lost == null) {
    lost = cause match {
      case error: DisklessException => error.named(peer.toString)
      case _ => Errors.unavailable(s"$peer: $why", cause)
    }
    if (wire != null) wire.close()
    else if (channel != null) Wire.closeQuietly(channel)
    outgoing.clear()
    val failed = underWay.values.toVector
    underWay.clear()
    failed.foreach(_.reply.completeExceptionally(lost))
  }
}

private[spark] object Connection {
  /** The gateway takes as many from one connection before it stops reading. */
  private val RequestsMax = 256
  private val ReceiveBytes = 64 << 10
  private val ReadsPerTurn = 16
  /** How the answer of a TLS port to plain bytes begins. */
  private val TlsAlert: Short = 0x1503
  /** Of a frame in a handshake. */
  private val StrangersBytesMax = 6 << 10

  private def describe(error: Throwable): String =
    Option(error.getMessage).getOrElse(error.getClass.getSimpleName)

  /** A frame on its way in; large ones are read straight into memory of their own. */
  private final class Incoming(val header: Frames.Header, packed: Array[Byte]) {
    private val claimed = new Array[Byte](header.checksumBytes)
    val meta = new Array[Byte](header.metaBytes)
    val payload = new Array[Byte](header.payloadBytes)
    private val parts = Array(claimed, meta, payload).map(ByteBuffer.wrap(_))

    def complete: Boolean = !parts.exists(_.hasRemaining)

    def rest: ByteBuffer = parts.find(_.hasRemaining).get

    def isSound(checksum: Checksum): Boolean =
      Frames.isSound(packed, claimed, meta, payload, checksum)

    def take(source: ByteBuffer): Unit = parts.foreach(Wire.move(source, _))
  }
}
