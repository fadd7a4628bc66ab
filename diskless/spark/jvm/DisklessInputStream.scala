package io.diskless.spark

import java.io.{EOFException, IOException}
import java.nio.ByteBuffer
import java.util.{List => JList, Optional}
import java.util.concurrent.CompletableFuture
import java.util.function.IntFunction

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.hadoop.fs.{
  FileRange, FileSystem, FSExceptionMessages, FSInputStream, StreamCapabilities,
  VectoredReadUtils}
import org.apache.hadoop.fs.statistics.{IOStatistics, IOStatisticsSource, StreamStatisticNames}
import org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding.iostatisticsStore

/** The content that a file had when it was opened.
  *
  * A small file comes with its opening. Reading in order is read ahead, four pieces at most;
  * reading here and there fetches a little more than asked for. Who reads a whole file in
  * order has its checksum verified.
  */
private[spark] final class DisklessInputStream(
    caller: Caller, path: String, statistics: FileSystem.Statistics)
    extends FSInputStream with StreamCapabilities with IOStatisticsSource {
  import DisklessInputStream._

  private val content = new Content(caller, path)
  private val ahead = new ReadAhead(caller, content)
  private val counters = iostatisticsStore().withCounters(
    StreamStatisticNames.STREAM_READ_OPERATIONS, StreamStatisticNames.STREAM_READ_BYTES).build()
  private var position = 0L
  private var piece = Array.emptyByteArray
  private var pieceStart = 0L
  private var inOrderFrom = 0L
  private var inOrderTo = 0L
  private var checksum = Option(new Checksum)
  @volatile private var closed = false

  override def getPos: Long = synchronized(position)

  override def seek(to: Long): Unit = synchronized {
    checkOpen()
    if (to < 0) throw new EOFException(s"${FSExceptionMessages.NEGATIVE_SEEK} $to in $path")
    if (to > content.size) {
      throw new EOFException(s"${FSExceptionMessages.CANNOT_SEEK_PAST_EOF}: $to in $path")
    }
    position = to
  }

  override def seekToNewSource(to: Long): Boolean = false

  override def available(): Int = synchronized {
    checkOpen()
    math.min(content.size - position, Int.MaxValue).toInt
  }

  override def skip(count: Long): Long = synchronized {
    checkOpen()
    val skipped = math.max(math.min(count, content.size - position), 0L)
    position += skipped
    skipped
  }

  override def read(): Int = {
    val one = new Array[Byte](1)
    if (read(one, 0, 1) < 0) -1 else one(0) & 0xFF
  }

  override def read(target: Array[Byte], offset: Int, length: Int): Int = synchronized {
    checkOpen()
    java.util.Objects.checkFromIndexSize(offset, length, target.length)
    if (length == 0) 0
    else if (position >= content.size) -1
    else {
      val count = math.min(length.toLong, content.size - position).toInt
      val done = Errors.asHadoop(readSome(target, offset, count))
      tally(done)
      done
    }
  }

  override def read(at: Long, target: Array[Byte], offset: Int, length: Int): Int = {
    checkOpen()
    validatePositionedReadArgs(at, target, offset, length)
    if (length == 0) 0
    else if (at >= content.size) -1
    else {
      val count = math.min(length.toLong, content.size - at).toInt
      Errors.asHadoop(content.read(at, target, offset, count))
      tally(count)
      count
    }
  }

  /** All ranges at once, before it returns: pieces of several are under way together. */
  override def readVectored(
      ranges: JList[_ <: FileRange], allocate: IntFunction[ByteBuffer]): Unit = {
    checkOpen()
    val sorted = VectoredReadUtils
      .validateAndSortRanges(ranges, Optional.of(java.lang.Long.valueOf(content.size))).asScala
    val filled = sorted.map(range => range -> allocate.apply(range.getLength)).toVector
    val pieces = for {
      (range, buffer) <- filled
      (at, count) <- Content.cutPieces(range.getOffset, range.getLength)
    } yield Content.Piece(at, count,
      bytes => buffer.duplicate().position((at - range.getOffset).toInt).put(bytes))
    filled.foreach { case (range, _) => range.setData(new CompletableFuture[ByteBuffer]) }
    try {
      // An inline file has no extents to ask for: its bytes are here already.
      val (here, afar) = pieces.partition(piece => takeFirst(piece))
      assert(here.size + afar.size == pieces.size)
      Errors.asHadoop(content.fetch(afar))
      filled.foreach { case (range, buffer) =>
        tally(range.getLength)
        range.getData.complete(buffer)
      }
    } catch {
      case error: IOException =>
        filled.foreach { case (range, _) => range.getData.completeExceptionally(error) }
    }
  }

  override def hasCapability(capability: String): Boolean =
    capability.equalsIgnoreCase(StreamCapabilities.VECTOREDIO) ||
      capability.equalsIgnoreCase(StreamCapabilities.IOSTATISTICS)

  override def getIOStatistics: IOStatistics = counters

  private def tally(bytes: Int): Unit = {
    statistics.incrementBytesRead(bytes)
    counters.incrementCounter(StreamStatisticNames.STREAM_READ_OPERATIONS)
    counters.incrementCounter(StreamStatisticNames.STREAM_READ_BYTES, bytes)
  }

  override def close(): Unit = synchronized {
    closed = true
    ahead.close()
    piece = Array.emptyByteArray
  }

  private def takeFirst(piece: Content.Piece): Boolean = {
    val bytes = new Array[Byte](piece.count)
    val whole = content.copyFirst(piece.start, bytes, 0, piece.count) == piece.count
    if (whole) piece.deliver(bytes)
    whole
  }

  /** Reads at least one byte, from wherever it can be had most cheaply. */
  private def readSome(target: Array[Byte], offset: Int, length: Int): Int = {
    if (position != inOrderTo) {
      inOrderFrom = position
      checksum = if (position == 0) Some(new Checksum) else None
    }
    var done = content.copyFirst(position, target, offset, length)
    if (done == 0) done = copyPiece(target, offset, length)
    if (done == 0) done = fetch(target, offset, length)
    position += done
    inOrderTo = position
    check(target, offset, done)
    done
  }

  private def fetch(target: Array[Byte], offset: Int, length: Int): Int = {
    val inOrder = position - inOrderFrom >= Content.PrefetchBytes
    val found = if (inOrder) ahead.take(position) else None
    if (found.isEmpty && length >= FetchBytesMin) {
      content.read(position, target, offset, length)
      length
    } else {
      piece = found.getOrElse {
        val some = new Array[Byte](
          math.min(FetchBytesMin.toLong, content.size - position).toInt)
        content.read(position, some, 0, some.length)
        some
      }
      pieceStart = position
      copyPiece(target, offset, length)
    }
  }

  private def copyPiece(target: Array[Byte], offset: Int, length: Int): Int = {
    val skip = position - pieceStart
    if (skip < 0 || skip >= piece.length) 0
    else {
      val count = math.min(piece.length - skip, length.toLong).toInt
      System.arraycopy(piece, skip.toInt, target, offset, count)
      count
    }
  }

  /** Follows a read from start to end, if this is one. */
  private def check(data: Array[Byte], offset: Int, count: Int): Unit =
    checksum.foreach { hash =>
      hash.update(data, offset, count)
      if (inOrderTo == content.size) {
        checksum = None
        Content.verify(content.status, hash.value())
      }
    }

  private def checkOpen(): Unit =
    if (closed) throw new IOException(s"$path: ${FSExceptionMessages.STREAM_IS_CLOSED}")
}

private[spark] object DisklessInputStream {
  /** A read here and there fetches at least this much. */
  private val FetchBytesMin = 64 << 10

  /** Pieces of a file fetched before they are asked for.
    *
    * It never retries: whatever goes wrong, `take` gives None, and the caller reads the plain
    * way. It begins with one piece, so that little is fetched for nothing if the reader stops soon.
    */
  private final class ReadAhead(caller: Caller, content: Content) {
    private var connection: Connection = _
    private val underWay = mutable.Queue.empty[(Long, Request)]
    private var piecesMax = 1
    private var next = 0L

    /** What follows `start`, if it can be had; more is on its way then. */
    def take(start: Long): Option[Array[Byte]] = {
      val tries = caller.attempts("read ahead")
      try {
        if (!underWay.headOption.exists(_._1 == start)) restart(start, tries)
        ask(tries)
        val reply = caller.await(connection, underWay.dequeue()._2, tries.deadline)
        piecesMax = math.min(piecesMax + 1, PiecesMax)
        ask(tries)
        Some(reply.payload).filter(_.nonEmpty)
      } catch {
        case _: DisklessException =>
          close()
          None
      }
    }

    def close(): Unit = {
      underWay.clear()
      connection = null
    }

    private def restart(start: Long, tries: Attempts): Unit = {
      close()
      next = start
      piecesMax = 1
      connection = caller.take(bulk = true, tries.deadline)
    }

    private def ask(tries: Attempts): Unit =
      while (underWay.size < piecesMax && next < content.size) {
        val count = Content.pieceBytes(next, content.size - next)
        underWay.enqueue(next -> content.ask(connection, next, count, tries))
        next += count
      }
  }

  val PiecesMax = 4
}
