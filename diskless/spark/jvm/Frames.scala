package io.diskless.spark

import java.nio.ByteBuffer

/** The bytes of a frame's header, and its limits: docs/frames.md is the specification. */
private[spark] object Frames {
  val HeaderBytes = 24
  val MetaBytesMax: Int = 4 << 20
  val PayloadBytesMax: Int = 4 << 20
  val NoLeader = 0xFFFF

  private val WithinUnitNanos = 10L * 1000 * 1000
  private val WithinMax = 0xFFFFL
  private val Magic: Short = 0xD15C.toShort
  private val Version: Byte = 1

  final case class Header(
      kind: Int, leader: Int, roster: Int, request: Long, metaBytes: Int, payloadBytes: Int)

  /** A header and a meta, ready to be sent before a payload of that size.
    *
    * `within` is the time for the answer as `packWithin` makes it, or 0.
    */
  def pack(
      kind: Int, within: Int, request: Long, meta: Array[Byte], payloadBytes: Int): ByteBuffer = {
    val buffer = ByteBuffer.allocate(HeaderBytes + meta.length)
    buffer.putShort(Magic).put(Version).put(kind.toByte).putShort(within.toShort).putShort(0)
    buffer.putLong(request).putInt(meta.length).putInt(payloadBytes).put(meta).flip()
    buffer
  }

  def packWithin(nanos: Long): Int =
    math.min(math.max(nanos / WithinUnitNanos, 1L), WithinMax).toInt

  /** Takes the next header out of `buffer`, which holds all of it, or says what is wrong. */
  def unpack(buffer: ByteBuffer): Either[String, Header] = {
    val magic = buffer.getShort
    val version = buffer.get
    val kind = buffer.get & 0xFF
    val leader = buffer.getShort & 0xFFFF
    val roster = buffer.getShort & 0xFFFF
    val request = buffer.getLong
    val metaBytes = buffer.getInt
    val payloadBytes = buffer.getInt
    if (magic != Magic) Left(f"magic is ${magic & 0xFFFF}%04X")
    else if (version != Version) Left(s"version is $version")
    else if (metaBytes < 0 || metaBytes > MetaBytesMax) Left(s"meta of $metaBytes bytes")
    else if (payloadBytes < 0 || payloadBytes > PayloadBytesMax) {
      Left(s"payload of $payloadBytes bytes")
    } else Right(Header(kind, leader, roster, request, metaBytes, payloadBytes))
  }
}

/** The operations of docs/frames.md. */
private[spark] object Kind {
  val Hello = 1
  val Session = 2
  val Roster = 3
  val Put = 4
  val Write = 5
  val Commit = 6
  val Abort = 7
  val Open = 8
  val Read = 9
  val Stat = 10
  val List = 11
  val Mkdirs = 12
  val Rename = 13
  val Delete = 14
  val Summary = 15
  val Done = 0x80
  val Refused = 0x81
}
