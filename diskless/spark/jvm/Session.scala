package io.diskless.spark

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode

/** What makes a mutation happen once: its numbers, and how often it may have been sent. */
private[spark] final class Ticket(var session: Long, var sequence: Long) {
  var sent = 0

  def stamp(meta: ObjectNode): Unit = meta.put("session", session).put("sequence", sequence)
}

/** The numbers of this JVM's mutations.
  *
  * Agents remember the answers to a session's last 512 numbers. All threads of a JVM share a
  * session, so one that retries for long could fall out of that window while the others go
  * on; before that can happen, new mutations get a new session.
  */
private[spark] final class Sessions(open: Attempts => Long) {
  import Sessions._

  private var session = 0L
  private var last = 0L
  private val pending = mutable.TreeSet.empty[Long]

  /** Nobody waits for another's session: when there is none yet, each who needs one asks. */
  def ticket(attempts: Attempts): Ticket = {
    var found = next()
    while (found.isEmpty) {
      begin(open(attempts))
      found = next()
    }
    found.get
  }

  /** The old numbers are no good, and nothing has happened under them: gives it new ones. */
  def renew(ticket: Ticket, attempts: Attempts): Unit = {
    synchronized(if (session == ticket.session) session = 0)
    val fresh = this.ticket(attempts)
    ticket.session = fresh.session
    ticket.sequence = fresh.sequence
  }

  /** It was refused, which agents remember: gives it the next numbers, to be asked again. */
  def again(ticket: Ticket, attempts: Attempts): Unit = {
    done(ticket)
    val fresh = this.ticket(attempts)
    ticket.session = fresh.session
    ticket.sequence = fresh.sequence
  }

  /** Its answer is known, or nobody waits for it any more. */
  def done(ticket: Ticket): Unit = synchronized {
    if (session == ticket.session) pending -= ticket.sequence
  }

  private def next(): Option[Ticket] = synchronized {
    if (needsAnother) None
    else {
      last += 1
      pending += last
      Some(new Ticket(session, last))
    }
  }

  private def begin(number: Long): Unit = synchronized {
    if (needsAnother) { // Else another thread was faster.
      session = number
      last = 0
      pending.clear()
    }
  }

  private def needsAnother: Boolean =
    session == 0 || pending.headOption.exists(last - _ >= WindowMax)
}

private[spark] object Sessions {
  val WindowMax = 384
}
