package io.diskless.spark

import java.nio.ByteBuffer

/** The bytes of a frame's header, its checksum and its limits: docs/frames.md is the
  * specification.
  */
private[spark] object Frames {
  val HeaderBytes = 24
  val ChecksumBytes = 8
  val MetaBytesMax: Int = 4 << 20
  val PayloadBytesMax: Int = 4 << 20
  val NoLeader = 0xFFFF

  private val WithinUnitNanos = 10L * 1000 * 1000
  private val WithinMax = 0xFFFFL
  private val Magic: Short = 0xD15C.toShort
  /** Frames without a checksum: refusals by agents that could not read our version. */
  val VersionPlain = 1
  /** Frames with an XXH64. */
  val Version = 4

  final case class Header(
      version: Int, kind: Int, leader: Int, roster: Int, request: Long,
      metaBytes: Int, payloadBytes: Int) {
    /** Of the checksum that follows the header. */
    def checksumBytes: Int = if (version == VersionPlain) 0 else ChecksumBytes

    /** Of what follows the checksum. */
    def bytes: Int = metaBytes + payloadBytes
  }

  /** A header, a checksum and a meta, ready to be sent before that payload, whose parts have
    * arrays.
    *
    * `within` is the time for the answer as `packWithin` makes it, or 0.
    */
  def pack(
      kind: Int, within: Int, request: Long, meta: Array[Byte], payload: Seq[ByteBuffer],
      checksum: Checksum): ByteBuffer = {
    val buffer = ByteBuffer.allocate(HeaderBytes + ChecksumBytes + meta.length)
    buffer.putShort(Magic).put(Version.toByte).put(kind.toByte)
    buffer.putShort(within.toShort).putShort(0)
    buffer.putLong(request).putInt(meta.length).putInt(payload.map(_.remaining).sum)
    checksum.reset()
    checksum.update(buffer.array, 0, HeaderBytes)
    checksum.update(meta, 0, meta.length)
    payload.foreach { part =>
      checksum.update(part.array, part.arrayOffset + part.position(), part.remaining)
    }
    buffer.putLong(checksum.toLong).put(meta).flip()
    buffer
  }

  /** Whether a frame is as it was sent. */
  def isSound(
      header: Array[Byte], claimed: Array[Byte], meta: Array[Byte], payload: Array[Byte],
      checksum: Checksum): Boolean = {
    checksum.reset()
    for (part <- Seq(header, meta, payload)) checksum.update(part, 0, part.length)
    checksum.toLong == ByteBuffer.wrap(claimed).getLong
  }

  def packWithin(nanos: Long): Int =
    math.min(math.max(nanos / WithinUnitNanos, 1L), WithinMax).toInt

  /** Takes the next header out of `buffer`, which holds all of it, or says what is wrong. */
  def unpack(buffer: ByteBuffer): Either[String, Header] = {
    val magic = buffer.getShort
    val version = buffer.get.toInt
    val kind = buffer.get & 0xFF
    val leader = buffer.getShort & 0xFFFF
    val roster = buffer.getShort & 0xFFFF
    val request = buffer.getLong
    val metaBytes = buffer.getInt
    val payloadBytes = buffer.getInt
    if (magic != Magic) Left(f"magic is ${magic & 0xFFFF}%04X")
    else if (version != Version && version != VersionPlain) Left(s"version is $version")
    else if (metaBytes < 0 || metaBytes > MetaBytesMax) Left(s"meta of $metaBytes bytes")
    else if (payloadBytes < 0 || payloadBytes > PayloadBytesMax) {
      Left(s"payload of $payloadBytes bytes")
    } else Right(Header(version, kind, leader, roster, request, metaBytes, payloadBytes))
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
  val Status = 16
  val Snapshot = 19
  val RenameSnapshot = 21
  val DeleteSnapshots = 22
  val Prove = 27
  val Prune = 50
  val KeepLeases = 53
  val NoteBatches = 54
  val Done = 0x80
  val Refused = 0x81
}
