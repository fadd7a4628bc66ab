package io.diskless.spark

import scala.collection.mutable

/** One version of a file, opened: where its bytes are, and the first of them.
  *
  * It is pinned: its extents are of one content and stay readable for a while. If they are
  * gone, the file is opened again, and read on only if it still has the same content. So
  * bytes of two versions are never mixed. Every reply has a checksum (Connection); a file that
  * came whole with its opening is checked as a whole. Threads may share it.
  */
private[spark] final class Content(caller: Caller, path: String) {
  import Content._

  private val what = s"read $path"
  @volatile private var placed = open(PrefetchBytes)

  val status: Status = placed.status

  def size: Long = status.size

  /** How many bytes from `start` on the opening brought along; they are copied to `target`. */
  def copyFirst(start: Long, target: Array[Byte], offset: Int, length: Int): Int = {
    val first = placed.first
    if (start >= first.length) 0
    else {
      val count = math.min(first.length - start, length.toLong).toInt
      System.arraycopy(first, start.toInt, target, offset, count)
      count
    }
  }

  /** Fills `target` with the bytes from `start` on, which must all be in the file. */
  def read(start: Long, target: Array[Byte], offset: Int, length: Int): Unit = {
    val done = copyFirst(start, target, offset, length)
    if (done < length) {
      val pieces = cutPieces(start + done, length - done).map { case (at, count) =>
        val goal = offset + (at - start).toInt
        Piece(at, count, bytes => System.arraycopy(bytes, 0, target, goal, count))
      }
      fetch(pieces)
    }
  }

  /** Gets all pieces, several under way at once; they come in any order. */
  def fetch(pieces: Seq[Piece]): Unit = {
    val tries = caller.attempts(what)
    val waiting = mutable.Queue.from(pieces)
    var reopens = 0
    while (waiting.nonEmpty) {
      try exchange(waiting, tries)
      catch {
        case error: DisklessException
            if error.reason == Errors.NotFound && reopens < ReopensMax =>
          reopens += 1
          reopen()
        case error: DisklessException if error.retryable => tries.failed(error)
      }
    }
  }

  /** A request for `count` bytes from `start` on, PieceBytes at most, on its way. */
  def ask(connection: Connection, start: Long, count: Int, tries: Attempts): Request = {
    val meta = Messages.read(placed.cut(start, count)).put("size", size)
    val request = Caller.request(Kind.Read, meta, Nil, tries.within)
    connection.send(request, tries.deadline)
    request
  }

  private def exchange(waiting: mutable.Queue[Piece], tries: Attempts): Unit = {
    val connection = caller.take(bulk = true, tries.deadline)
    var underWay = Vector.empty[(Piece, Request)]
    try {
      while (waiting.nonEmpty || underWay.nonEmpty) {
        while (underWay.size < PiecesMax && waiting.nonEmpty) {
          val piece = waiting.head
          underWay :+= piece -> ask(connection, piece.start, piece.count, tries)
          waiting.dequeue()
        }
        caller.awaitAny(connection, underWay.map(_._2), tries.deadline)
        for ((piece, request) <- underWay if request.reply.isDone) {
          take(piece, caller.await(connection, request, tries.deadline))
          underWay = underWay.filterNot(_._2 eq request)
          tries.progressed()
        }
      }
    } finally underWay.reverseIterator.foreach { case (piece, _) => waiting.prepend(piece) }
  }

  private def take(piece: Piece, reply: Reply): Unit = {
    if (reply.payload.length != piece.count) {
      throw Errors.unavailable(
        s"$what: ${reply.payload.length} bytes came where ${piece.count} were asked for")
    }
    piece.deliver(reply.payload)
  }

  /** Finds where the same bytes are now. Throws NotFound if the file has others. */
  private def reopen(): Unit = {
    val found = try open(0)
    catch {
      case error: DisklessException if error.reason == Errors.PathIsDirectory =>
        throw notFound(s"$path was deleted while it was read")
    }
    if (found.status.id != status.id) throw notFound(s"$path was replaced while it was read")
    placed = found
  }

  private def open(prefetch: Int): Placed = {
    val reply = caller.call(Kind.Open, Messages.path(path).put("prefetch", prefetch), what)
    val found = new Placed(
      Messages.status(reply.json.path("file")), Messages.extents(reply.json.path("extents")),
      reply.payload)
    if (math.max(found.placedBytes, found.first.length) < found.status.size) {
      throw new DisklessException("InternalError", s"$path: ${found.placedBytes} of its " +
        s"${found.status.size} bytes have a place", retryable = false)
    }
    if (found.first.length == found.status.size) {
      verify(found.status, Checksum.of(found.first))
    }
    found
  }

  private def notFound(message: String): DisklessException =
    new DisklessException(Errors.NotFound, message, retryable = false)
}

private[spark] object Content {
  /** Payload of one `read`; it begins and ends at multiples of this, as stripes mostly do, so
    * that it takes one stripe and not parts of two. */
  val PieceBytes: Int = 1 << 20
  /** What opening a file brings along, so that a small one takes one round trip. */
  val PrefetchBytes: Int = 64 << 10
  /** Unanswered `read` requests. */
  val PiecesMax = 12
  val ReopensMax = 3

  final case class Piece(start: Long, count: Int, deliver: Array[Byte] => Unit)

  /** How much of what follows `start` to ask for in one piece. */
  def pieceBytes(start: Long, left: Long): Int =
    math.min(PieceBytes - start % PieceBytes, left).toInt

  /** Throws CorruptData if that is not the file's checksum. */
  def verify(status: Status, checksum: String): Unit =
    if (status.checksum.nonEmpty && status.checksum != checksum) {
      throw new DisklessException(Errors.CorruptData,
        s"${status.path}: checksum is $checksum, ${status.checksum} was stored",
        retryable = false)
    }

  def cutPieces(start: Long, length: Int): Seq[(Long, Int)] = {
    val end = start + length
    Iterator.iterate((start, pieceBytes(start, length))) { case (at, count) =>
      (at + count, pieceBytes(at + count, end - at - count))
    }.takeWhile(_._1 < end).toVector
  }

  /** Where the bytes of one version are. */
  private final class Placed(
      val status: Status, extents: Vector[Extent], val first: Array[Byte]) {
    private val starts = extents.scanLeft(0L)(_ + _.length).toArray

    def placedBytes: Long = starts.last

    /** The parts of the extents that hold `length` bytes from `start` on. */
    def cut(start: Long, length: Int): Seq[Extent] = {
      val parts = Vector.newBuilder[Extent]
      val found = java.util.Arrays.binarySearch(starts, start)
      var index = if (found >= 0) found else -found - 2
      var at = start
      while (at < start + length) {
        val extent = extents(index)
        val skip = at - starts(index)
        val count = math.min(extent.length - skip, start + length - at)
        parts += extent.copy(offset = extent.offset + skip, length = count)
        at += count
        index += 1
      }
      parts.result()
    }
  }
}
