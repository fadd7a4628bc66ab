package io.diskless.spark

import java.nio.ByteBuffer
import java.util.concurrent.ThreadLocalRandom

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/** A stream of bytes on its way into the cluster, through one agent at a time.
  *
  * It keeps the bytes that are not sealed in stripes yet, and nothing else: when the agent or
  * the connection fails it continues with another one from the last sealed stripe, as
  * docs/frames.md says. Nothing is visible before `commit` returns. One thread at a time.
  *
  * Invariants: `unsealed` holds exactly the bytes from `sealedBytes` on that were appended;
  * each try has a new upload number, so that no agent can mix up two tries.
  */
private[spark] final class Upload(caller: Caller, what: String, path: String) {
  import Upload._

  private var size = 0L
  private var connection: Connection = _
  private var number = 0L
  private var resuming = false
  private val sealedStripes = mutable.ArrayBuffer.empty[JsonNode]
  private var sealedBytes = 0L
  private var sentBytes = 0L
  /** The most that any agent has said to have. */
  private var receivedBytes = 0L
  private var unsealed = Vector.empty[ByteBuffer]
  private val underWay = mutable.Queue.empty[Request]

  /** Takes the next bytes, a frame at most; they must not change any more. */
  def append(chunk: ByteBuffer): Unit = {
    unsealed :+= chunk
    size += chunk.remaining
    val tries = caller.attempts(what)
    var sent = false
    while (!sent) {
      try {
        sendUnsent(tries)
        sent = true
      } catch { case error: DisklessException => fail(error, tries) }
    }
  }

  /** Appends the last bytes and makes the files of `put` visible. */
  def commit(put: ObjectNode, tail: ByteBuffer): Unit = {
    val tries = caller.attempts(what)
    val ticket = caller.ticket(tries)
    try {
      var done = false
      while (!done) {
        try {
          sendUnsent(tries)
          val meta = put.deepCopy()
          ticket.stamp(meta)
          ticket.sent += 1
          sendCommit(meta, tail, tries, again = ticket.sent > 1)
          done = true
        } catch {
          case error: DisklessException =>
            leave()
            caller.reconsider(error, ticket, tries)
        }
      }
      caller.giveBack(connection)
      connection = null
    } finally caller.done(ticket)
  }

  /** Lets the agent forget the bytes, if it can be told; never throws and never waits. */
  def abort(): Unit = {
    unsealed = Vector.empty
    if (connection != null) {
      connection.post(Caller.request(Kind.Abort, Messages.meta().put("upload", number), Nil))
      caller.giveBack(connection)
    }
    connection = null
  }

  private def sendUnsent(tries: Attempts): Unit = {
    if (connection == null) begin(tries)
    // The sooner it is known what is sealed, the less is kept, and sent again if need be.
    while (underWay.nonEmpty && underWay.front.reply.isDone) receive(tries)
    var offset = sealedBytes
    for (chunk <- unsealed) {
      val end = offset + chunk.remaining
      if (offset >= sentBytes) {
        while (!hasRoom) receive(tries)
        val meta = Messages.meta().put("upload", number).put("offset", offset).put("path", path)
        send(Kind.Write, meta, Seq(chunk), tries, tries.within)
        sentBytes = end
      }
      offset = end
    }
  }

  /** `again`: it failed before, so the agent must say in time what it waits for. */
  private def sendCommit(
      meta: ObjectNode, tail: ByteBuffer, tries: Attempts, again: Boolean): Unit = {
    meta.put("upload", number).put("offset", size)
    val payload = if (tail.hasRemaining) Seq(tail) else Nil
    send(Kind.Commit, meta, payload, tries, if (again) tries.within else 0)
    // What is sealed matters until the commit is answered, and then not any more: the answer
    // to a `write` may come after that. If it fails, what came before it is not sent again.
    val commit = underWay.last
    def hasNews: Boolean = (underWay.front ne commit) && underWay.front.reply.isDone
    while (hasNews || ((underWay.front ne commit) && !commit.reply.isDone)) {
      caller.awaitAny(connection, Seq(underWay.front, commit), tries.deadline)
      if (hasNews) receive(tries)
    }
    caller.await(connection, commit, tries.deadline)
  }

  private def begin(tries: Attempts): Unit = {
    underWay.clear()
    connection = caller.borrow(tries.deadline)
    number = ThreadLocalRandom.current().nextLong() & Long.MaxValue
    sentBytes = sealedBytes
    resuming = sealedStripes.nonEmpty
  }

  private def send(
      kind: Int, meta: ObjectNode, payload: Seq[ByteBuffer], tries: Attempts,
      within: Int): Unit = {
    if (resuming) {
      meta.putArray("resume").addAll(sealedStripes.asJava)
      resuming = false
    }
    val request = Caller.request(kind, meta, payload, within)
    connection.send(request, tries.deadline)
    underWay.enqueue(request)
  }

  private def hasRoom: Boolean = {
    val waiting = sentBytes - sealedBytes
    if (underWay.isEmpty && waiting >= UnsealedBytesLimit) {
      throw new DisklessException(Errors.UploadLost,
        s"$what: $waiting bytes sent and none of them sealed", retryable = false)
    }
    underWay.isEmpty || (underWay.size < FramesMax && waiting < UnsealedBytesMax)
  }

  private def receive(tries: Attempts): Unit = {
    val reply = caller.await(connection, underWay.front, tries.deadline)
    underWay.dequeue()
    val before = (receivedBytes, sealedBytes)
    receivedBytes = math.max(receivedBytes, reply.json.path("received").asLong)
    var position = reply.json.path("sealed_from").asLong
    val stripes = reply.json.path("sealed").elements.asScala.toVector
    for (stripe <- stripes) {
      val payloadBytes = stripe.get(PayloadBytesField).asLong
      if (position == sealedBytes) seal(stripe, payloadBytes)
      position += payloadBytes
    }
    // Bytes that were there before are none: else a commit that is refused again and again, for
    // which they are sent each time, would never come to its deadline.
    if ((receivedBytes, sealedBytes) != before) tries.progressed()
    if (stripes.nonEmpty && position != sealedBytes) {
      throw Errors.unavailable(s"$what: sealed stripes do not follow one another")
    }
  }

  private def seal(stripe: JsonNode, payloadBytes: Long): Unit = {
    sealedStripes += stripe
    sealedBytes += payloadBytes
    var drop = payloadBytes
    while (drop > 0 && unsealed.nonEmpty) {
      val chunk = unsealed.head
      if (drop < chunk.remaining) {
        val rest = chunk.duplicate()
        rest.position(chunk.position() + drop.toInt)
        unsealed = rest +: unsealed.tail
        drop = 0
      } else {
        unsealed = unsealed.tail
        drop -= chunk.remaining
      }
    }
  }

  /** The agent keeps what it sealed for a while after this, so that another can continue. */
  private def leave(): Unit = {
    if (connection != null) connection.close("is left for another")
    connection = null
  }

  /** Returns if another try makes sense; else throws. */
  private def fail(error: DisklessException, tries: Attempts): Unit = {
    leave()
    if (!error.retryable) throw error
    tries.failed(error)
  }
}

private[spark] object Upload {
  /** Payload of one `write`: a whole stripe by default. */
  val FrameBytes: Int = 1 << 20
  /** Unanswered `write` frames. */
  val FramesMax = 8
  /** With more than this unsealed, frames go one by one. */
  val UnsealedBytesMax: Long = 16L << 20
  /** An agent that takes this much and seals nothing is broken. */
  val UnsealedBytesLimit: Long = 32L << 20
  /** Where a stripe, which is opaque otherwise, has its number of payload bytes. */
  private val PayloadBytesField = 3
}
