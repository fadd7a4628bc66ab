package io.diskless.spark

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel
import java.util.ArrayDeque

/** How the bytes of one connection get through its channel, which is connected and does not
  * block. Only for the I/O thread.
  */
private[spark] trait Wire {
  /** Takes of `outgoing` what gets through now. Whether it waits for room in the channel. */
  def send(outgoing: ArrayDeque[ByteBuffer]): Boolean

  /** As SocketChannel.read: 0 if nothing is there, -1 at the end. */
  def receive(target: ByteBuffer): Int

  /** Whether there may be more to receive although nothing more comes from the channel. */
  def holdsMore: Boolean

  /** Whether what was received makes it worth to send now. */
  def isStirred: Boolean

  /** Ends it in order, as far as that can be done at once. */
  def close(): Unit
}

/** Bytes as they are. */
private[spark] final class PlainWire(channel: SocketChannel) extends Wire {
  private val staged = ByteBuffer.allocateDirect(Wire.StageBytes).flip()

  override def send(outgoing: ArrayDeque[ByteBuffer]): Boolean = {
    var blocked = false
    while (!blocked && (staged.hasRemaining || !outgoing.isEmpty)) {
      if (!staged.hasRemaining) Wire.stage(outgoing, staged)
      channel.write(staged)
      blocked = staged.hasRemaining
    }
    blocked
  }

  override def receive(target: ByteBuffer): Int = channel.read(target)

  override def holdsMore: Boolean = false

  override def isStirred: Boolean = false

  override def close(): Unit = Wire.closeQuietly(channel)
}

private[spark] object Wire {
  val StageBytes: Int = 128 << 10

  /** The JDK copies all that it is given at every write, however little the socket takes; so
    * it is given little, from memory that it need not copy again.
    */
  def stage(outgoing: ArrayDeque[ByteBuffer], staged: ByteBuffer): Unit = {
    staged.clear()
    while (staged.hasRemaining && !outgoing.isEmpty) {
      move(outgoing.peek, staged)
      if (!outgoing.peek.hasRemaining) outgoing.poll()
    }
    staged.flip()
  }

  /** As much as there is, and as there is room for. */
  def move(source: ByteBuffer, target: ByteBuffer): Int = {
    val count = math.min(source.remaining, target.remaining)
    target.put(source.slice(source.position(), count))
    source.position(source.position() + count)
    count
  }

  def closeQuietly(channel: SocketChannel): Unit =
    try channel.close()
    catch { case _: IOException => () } // It is gone either way.
}
