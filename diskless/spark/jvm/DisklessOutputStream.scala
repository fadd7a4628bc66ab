package io.diskless.spark

import java.io.{InterruptedIOException, IOException, OutputStream}
import java.lang.ref.Cleaner
import java.nio.ByteBuffer

import org.apache.hadoop.fs.{Abortable, FSExceptionMessages, StreamCapabilities, Syncable}
import org.apache.hadoop.fs.Abortable.AbortableResult
import org.apache.hadoop.fs.statistics.{IOStatistics, IOStatisticsSource, StreamStatisticNames}
import org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding.iostatisticsStore

/** A new file. It appears, whole and durable, when `close` returns, and otherwise not at all.
  *
  * What fits in a frame is one `put` at the end; more is streamed while it is written. A
  * write that failed, or `abort`, spoils the file for good: `close` commits nothing then.
  * Nothing is protected or visible before that, so `hflush` and `hsync` are refused: a caller of
  * them relies on what they promise. `lenient` makes them do nothing, as object stores can.
  * Without `parents` the directory above must be there when it is closed.
  */
private[spark] final class DisklessOutputStream(
    caller: Caller, path: String, overwrite: Boolean, parents: Boolean, lenient: Boolean)
    extends OutputStream with StreamCapabilities with Abortable with Syncable
    with IOStatisticsSource {
  import DisklessOutputStream._

  private val what = s"write $path"
  private val checksum = new Checksum
  private val counters = iostatisticsStore()
    .withCounters(StreamStatisticNames.STREAM_WRITE_BYTES, StreamStatisticNames.STREAM_WRITE_EXCEPTIONS)
    .build()
  private var size = 0L
  private var buffer = new Array[Byte](FirstBufferBytes)
  private var buffered = 0
  private var upload: Upload = _
  private var failure: IOException = _
  private var closed = false

  override def write(byte: Int): Unit = synchronized {
    checkUsable()
    makeRoom(1)
    buffer(buffered) = byte.toByte
    buffered += 1
    size += 1
  }

  override def write(data: Array[Byte], offset: Int, length: Int): Unit = synchronized {
    java.util.Objects.checkFromIndexSize(offset, length, data.length)
    checkUsable()
    var at = offset
    val end = offset + length
    while (at < end) {
      makeRoom(end - at)
      val count = math.min(buffer.length - buffered, end - at)
      System.arraycopy(data, at, buffer, buffered, count)
      buffered += count
      at += count
    }
    size += length
  }

  override def close(): Unit = synchronized {
    if (!closed) {
      closed = true
      failure match {
        case null => ()
        case interrupted: InterruptedIOException => throw interrupted // a clean stop, to Spark
        case other => throw new IOException(s"$what: it failed before", other)
      }
      guarded(commit())
      release()
    }
  }

  override def hflush(): Unit = refuseToSync("hflush")

  override def hsync(): Unit = refuseToSync("hsync")

  private def refuseToSync(operation: String): Unit = synchronized {
    checkUsable()
    if (!lenient) {
      throw new UnsupportedOperationException(
        s"$operation of $path: a file of diskless is protected when it is closed, not before; " +
          s"${Store.LenientSyncKey}=true makes it do nothing")
    }
  }

  override def getIOStatistics: IOStatistics = counters

  /** Ends without making anything visible; does nothing after `close`. */
  override def abort(): AbortableResult = synchronized {
    val wasClosed = closed
    closed = true
    if (!wasClosed) discard()
    new AbortableResult {
      override def alreadyClosed: Boolean = wasClosed
      override def anyCleanupException: IOException = null
    }
  }

  override def hasCapability(capability: String): Boolean =
    capability.equalsIgnoreCase(StreamCapabilities.ABORTABLE_STREAM) ||
      capability.equalsIgnoreCase(StreamCapabilities.IOSTATISTICS)

  /** Makes room for at least one of `wanted` bytes. */
  private def makeRoom(wanted: Int): Unit = {
    if (buffered == Upload.FrameBytes) guarded(sendBuffer())
    else if (buffered + wanted > buffer.length && buffer.length < Upload.FrameBytes) {
      val needed = math.max(2L * buffer.length, buffered.toLong + wanted)
      buffer = java.util.Arrays.copyOf(buffer, math.min(needed, Upload.FrameBytes).toInt)
    }
  }

  private def sendBuffer(): Unit = {
    if (upload == null) begin()
    checksum.update(buffer, 0, buffered)
    val full = ByteBuffer.wrap(buffer, 0, buffered)
    buffer = new Array[Byte](Upload.FrameBytes) // The full one is the upload's now.
    buffered = 0
    upload.append(full)
  }

  private def begin(): Unit = {
    val begun = new Upload(caller, what, path)
    upload = begun
    // For a stream that nobody ever closes: its agent would keep the bytes.
    Forgotten.register(this, () => begun.abort())
  }

  private def commit(): Unit = {
    checksum.update(buffer, 0, buffered)
    val tail = ByteBuffer.wrap(buffer, 0, buffered)
    val put = Messages.meta().put("overwrite", overwrite)
    if (!parents) put.put("parents", false)
    put.putArray("files")
      .add(Messages.path(path).put("size", size).put("checksum", checksum.value()))
    if (upload != null) upload.commit(put, tail)
    else {
      val payload = if (buffered > 0) Seq(tail) else Nil
      caller.mutate(Kind.Put, put, what, payload, bulk = buffered > SmallBytesMax)
    }
    counters.incrementCounter(StreamStatisticNames.STREAM_WRITE_BYTES, size)
  }

  /** Runs `work`; if it fails, whatever the reason, the file is lost. */
  private def guarded(work: => Unit): Unit = {
    var done = false
    try {
      Errors.asHadoop(work)
      done = true
    } catch {
      case error: IOException =>
        counters.incrementCounter(StreamStatisticNames.STREAM_WRITE_EXCEPTIONS)
        failure = error
        throw error
    } finally if (!done) discard()
  }

  private def discard(): Unit = {
    if (failure == null) failure = new IOException(s"$what: aborted")
    if (upload != null) upload.abort()
    release()
  }

  private def release(): Unit = {
    upload = null
    buffer = Array.emptyByteArray
    buffered = 0
  }

  private def checkUsable(): Unit = {
    if (closed) throw new IOException(s"$path: ${FSExceptionMessages.STREAM_IS_CLOSED}")
    if (failure != null) throw new IOException(s"$what: it failed before", failure)
  }
}

private[spark] object DisklessOutputStream {
  private val Forgotten = Cleaner.create()
  /** Most files of a checkpoint are smaller. */
  private val FirstBufferBytes = 4 << 10
  /** Files up to this size go straight to the leader. */
  val SmallBytesMax: Int = 64 << 10
}
