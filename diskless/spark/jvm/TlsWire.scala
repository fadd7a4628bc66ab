package io.diskless.spark

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel
import java.util.ArrayDeque
import javax.net.ssl.SSLEngine
import javax.net.ssl.SSLEngineResult.{HandshakeStatus, Status}

import scala.util.control.NonFatal

/** Bytes encrypted, by the JDK's engine, on the I/O thread.
  *
  * What takes the engine longer, while a connection is made, comes in tasks; each gets a turn
  * of the I/O thread for itself, so that other connections wait for one of them at most: some
  * milliseconds. `resume` is called after it, since sending and receiving may continue then.
  */
private[spark] final class TlsWire(
    channel: SocketChannel, engine: SSLEngine, io: IoThread, resume: () => Unit) extends Wire {
  import TlsWire._

  // All in the heap: the JDK's ciphers work on arrays.
  private val packetBytes = engine.getSession.getPacketBufferSize
  private val staged = ByteBuffer.allocate(packetBytes * PacketsPerTurn).flip()
  private val closed = ByteBuffer.allocate(packetBytes * PacketsPerTurn).flip()
  private val coming = ByteBuffer.allocate(packetBytes * PacketsPerTurn).flip()
  private val opened = ByteBuffer.allocate(engine.getSession.getApplicationBufferSize).flip()
  private var established = false
  private var isFresh = false
  private var taskIsDue = false
  private var ended = false

  engine.beginHandshake()

  override def send(outgoing: ArrayDeque[ByteBuffer]): Boolean = {
    var clear = drain()
    if (clear && (established || shake())) {
      isFresh = false
      while (clear && (hasStaged(outgoing) || needsWrap)) {
        fill(outgoing)
        clear = drain()
      }
    }
    closed.hasRemaining
  }

  override def receive(target: ByteBuffer): Int = {
    val before = target.position()
    var going = opened.hasRemaining || established || shake()
    while (going && !opened.hasRemaining && target.position() == before) going = unwrap(target)
    if (opened.hasRemaining) Wire.move(opened, target)
    val count = target.position() - before
    if (count == 0 && ended) -1 else count
  }

  override def holdsMore: Boolean = opened.hasRemaining || coming.hasRemaining

  override def isStirred: Boolean = isFresh || closed.hasRemaining || needsWrap

  override def close(): Unit = {
    try if (drain()) {
      // Whoever is there shall know that this is the end and not a cut, or what we refuse.
      engine.closeOutbound()
      closed.clear()
      try engine.wrap(Nothing, closed) finally closed.flip()
      drain()
    } catch { case NonFatal(_) => () } // It ends either way.
    Wire.closeQuietly(channel)
  }

  /** Goes on with the handshake as far as that can be done now; whether it is done. */
  private def shake(): Boolean = {
    var going = !taskIsDue
    while (going) {
      engine.getHandshakeStatus match {
        case HandshakeStatus.NEED_TASK =>
          defer(engine.getDelegatedTask)
          going = false
        case HandshakeStatus.NEED_WRAP => going = wrap(Nothing) && drain()
        case HandshakeStatus.NEED_UNWRAP => going = unwrap(Nothing)
        case _ =>
          established = true
          isFresh = true
          going = false
      }
    }
    established
  }

  private def defer(task: Runnable): Unit = {
    taskIsDue = true
    io.again { () =>
      if (channel.isOpen) {
        task.run()
        taskIsDue = false
        resume()
      }
    }
  }

  private def needsWrap: Boolean =
    established && engine.getHandshakeStatus == HandshakeStatus.NEED_WRAP

  private def hasStaged(outgoing: ArrayDeque[ByteBuffer]): Boolean = {
    if (!staged.hasRemaining && !outgoing.isEmpty) Wire.stage(outgoing, staged)
    staged.hasRemaining
  }

  /** Encrypts as much as one write takes. */
  private def fill(outgoing: ArrayDeque[ByteBuffer]): Unit = {
    var room = true
    while (room && (hasStaged(outgoing) || needsWrap)) room = wrap(staged)
  }

  /** Adds a packet to what is to be sent; false if it is full. */
  private def wrap(source: ByteBuffer): Boolean = {
    closed.compact()
    val result = try engine.wrap(source, closed) finally closed.flip()
    if (result.getStatus == Status.CLOSED) throw new IOException("closed the connection")
    result.getStatus == Status.OK
  }

  /** Whether all that is encrypted is on its way. */
  private def drain(): Boolean = {
    if (closed.hasRemaining) channel.write(closed)
    !closed.hasRemaining
  }

  /** Opens a packet, into `opened` if `target` might not hold it, or gets more from the
    * channel; false if there is none.
    */
  private def unwrap(target: ByteBuffer): Boolean = {
    val isLarge = target.remaining >= opened.capacity
    val into = if (isLarge) target else opened.clear()
    val result = try engine.unwrap(coming, into) finally if (!isLarge) opened.flip()
    result.getStatus match {
      case Status.BUFFER_UNDERFLOW => fetch()
      case Status.OK =>
        if (established) runTasks()
        true
      case _ =>
        ended = true
        false
    }
  }

  /** What little there is to do for tickets and new keys, once a connection is made. */
  private def runTasks(): Unit =
    while (engine.getHandshakeStatus == HandshakeStatus.NEED_TASK) engine.getDelegatedTask.run()

  private def fetch(): Boolean = {
    coming.compact()
    val count = try channel.read(coming) finally coming.flip()
    if (count < 0) ended = true
    count > 0
  }
}

private[spark] object TlsWire {
  /** As many as are sent, or received, at once: the JDK copies all that is in a buffer for
    * every write, however little the socket takes.
    */
  private val PacketsPerTurn = 4
  private def Nothing: ByteBuffer = ByteBuffer.allocate(0)
}
