package io.diskless.spark

import java.io.IOException
import java.lang.management.ManagementFactory
import java.nio.ByteBuffer
import java.util.UUID
import java.util.concurrent.{
  CompletableFuture, ConcurrentHashMap, ConcurrentLinkedDeque, TimeUnit}
import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode

/** Requests to one cluster that survive its agents: connections, retries, failover, tickets.
  *
  * There is one for each cluster in a JVM, and all threads share it. To each agent it keeps
  * one connection for small requests and one for bulk, so that the small never wait behind
  * megabytes. A mutation keeps its numbers over all its attempts, so that it happens once; it
  * gets new ones only if it was never sent under the old ones.
  */
private[spark] final class Caller(
    descriptor: Descriptor, timeoutNanos: Long, resolve: Resolver = Resolver.Names) {
  import Caller._

  descriptor.identity.trust.foreach(_.prepare())

  private val routes = new Routes(descriptor.gateways, salt = UUID.randomUUID().toString)
  private val greetings = new ConcurrentHashMap[String, Greeting]
  private val idle = new ConcurrentLinkedDeque[Connection]
  private val sessions = new Sessions(attempts =>
    call(Kind.Session, Messages.meta().put("application", Application.label), Nil, attempts,
      bulk = false).json.path("session").asLong)
  private val refreshing = new AtomicBoolean
  /** What those said who have not proved to be agents, since one last did. */
  private val strangers = new ConcurrentHashMap[String, DisklessException]

  /** That the first agent was in, and whether one was in another since. */
  @volatile private var epoch: Option[Long] = None
  @volatile private var isRestored = false

  def hosts: Map[Int, String] = routes.hosts

  def attempts(what: String): Attempts = new Attempts(what, timeoutNanos)

  /** The reply to a request that is safe to repeat.
    *
    * Throws the refusal if it is final, DeadlineExceeded if no attempt succeeded.
    */
  def call(kind: Int, meta: ObjectNode, what: String): Reply =
    call(kind, meta, Nil, attempts(what), bulk = false)

  /** As `call`, for callers that give up sooner than files do, but not on an agent: what is known of
    * agents is shared by all. */
  def call(kind: Int, meta: ObjectNode, what: String, withinNanos: Long): Reply =
    call(kind, meta, Nil,
      new Attempts(what, math.min(withinNanos, timeoutNanos), attemptsMin = 1), bulk = false)

  /** As `call`, for a mutation: it happens once, however often it is sent. */
  def mutate(
      kind: Int, meta: ObjectNode, what: String, payload: Seq[ByteBuffer] = Nil,
      bulk: Boolean = false): Reply = {
    val tries = attempts(what)
    val ticket = sessions.ticket(tries)
    try {
      while (true) {
        ticket.stamp(meta)
        try {
          val connection = take(bulk, tries.deadline)
          ticket.sent += 1
          return exchange(connection, kind, meta, payload, tries.deadline)
        } catch { case error: DisklessException => reconsider(error, ticket, tries) }
      }
      throw new AssertionError("unreachable")
    } finally sessions.done(ticket)
  }

  def ticket(tries: Attempts): Ticket = sessions.ticket(tries)

  def done(ticket: Ticket): Unit = sessions.done(ticket)

  /** Returns, after a pause, if a refused or lost mutation may be sent again; else throws. */
  def reconsider(error: DisklessException, ticket: Ticket, tries: Attempts): Unit = {
    if (error.reason == Errors.SessionExpired && ticket.sent == 1) {
      // Refused at its first and only sending, so it surely has not happened. `sent` keeps
      // counting: a second time is thrown.
      sessions.renew(ticket, tries)
    } else if (error.reason == Errors.CheckpointInUse && tries.isYoung(LeaseNanos)) {
      // Perhaps of an application that has died: then its lease is over soon.
      sessions.again(ticket, tries)
    } else if (!error.retryable) throw error
    tries.failed(error)
  }

  /** The reply to a request that was sent. Throws the refusal, or Unavailable. */
  def await(connection: Connection, request: Request, deadline: Deadline): Reply = {
    val began = System.nanoTime()
    val reply = try deadline.await(request.reply)
    catch {
      case refusal: DisklessException =>
        if (connection.usable) heard(connection, Some(refusal))
        throw refusal
    }
    if (reply.isEmpty) throw silent(connection, began)
    heard(connection)
    reply.get
  }

  /** Returns when one of the requests has been answered or refused, or has failed. */
  def awaitAny(connection: Connection, requests: Seq[Request], deadline: Deadline): Unit = {
    val began = System.nanoTime()
    val any = CompletableFuture.anyOf(requests.map(_.reply.handle[Unit]((_, _) => ())): _*)
    if (deadline.await(any).isEmpty) throw silent(connection, began)
  }

  /** A connection that all threads share. Throws Unavailable, Unauthorized or NoCluster. */
  def take(bulk: Boolean, deadline: Deadline): Connection = {
    val peer = pick(bulk)
    val greeting = greetings.compute(s"${peer.address} $bulk",
      (_, known) => if (known != null && known.usable) known else knock(peer))
    awaitGreeting(greeting, deadline)
  }

  /** A connection for one upload alone: an agent forgets an upload when its connection goes.
    *
    * Give it back when nothing on it matters any more, or close it.
    */
  def borrow(deadline: Deadline): Connection = {
    val peer = pick(bulk = true)
    var found = idle.poll()
    while (found != null && !(found.usable && found.peer == peer)) {
      found.close("was idle")
      found = idle.poll()
    }
    if (found != null) found
    else {
      val greeting = knock(peer)
      try awaitGreeting(greeting, deadline)
      catch {
        case error: IOException => // An interrupt too: nobody else waits for it.
          greeting.close("is not waited for")
          throw error
      }
    }
  }

  def giveBack(connection: Connection): Unit =
    if (connection.usable && idle.size < IdleMax) idle.add(connection)
    else connection.close("is not needed")

  private def pick(bulk: Boolean): Peer = {
    if (routes.allFailed) rereadDescriptor()
    routes.pick(bulk)
  }

  private def awaitGreeting(greeting: Greeting, deadline: Deadline): Connection = {
    val peer = greeting.peer
    try {
      deadline.sooner(ConnectNanos).await(greeting.greeted) match {
        case Some(connection) =>
          if (isRestored) throw Errors.restored(descriptor.identity.name)
          if (routes.isOutdated) refresh(connection)
          connection
        case None =>
          greeting.close("did not greet in time")
          throw Errors.unavailable(s"$peer did not greet in time")
      }
    } catch {
      case error: DisklessException =>
        routes.failed(peer)
        if (error.retryable) doubt(peer, error)
        throw error
    }
  }

  /** Throws Unauthorized if nobody is left that might prove to be an agent. Until then who refuses
    * us may be a stranger on a dead agent's port, whose word is nothing.
    */
  private def doubt(peer: Peer, error: DisklessException): Unit = {
    if (error.reason == Errors.Unauthorized) strangers.put(peer.address, error)
    else strangers.remove(peer.address)
    if (!strangers.isEmpty && routes.noAgentLeft(strangers.containsKey(_))) {
      // Who refused us had more to say than who could not prove itself.
      val known = strangers.values.asScala
      val telling = known.find(Greeting.isRefusal).orElse(known.headOption).getOrElse(error)
      throw Errors.unauthorized(
        s"${telling.getMessage}; ${Descriptor.Token} must be a token of cluster " +
          s"${descriptor.identity.name} that is good now (`diskless spark-conf` prints one)",
        cause = telling)
    }
  }

  private def call(
      kind: Int, meta: ObjectNode, payload: Seq[ByteBuffer], tries: Attempts,
      bulk: Boolean): Reply = {
    while (true) {
      try {
        val connection = take(bulk, tries.deadline)
        return exchange(connection, kind, meta, payload, tries.deadline)
      } catch {
        case error: DisklessException if error.retryable => tries.failed(error)
      }
    }
    throw new AssertionError("unreachable")
  }

  private def exchange(
      connection: Connection, kind: Int, meta: ObjectNode, payload: Seq[ByteBuffer],
      deadline: Deadline): Reply = {
    val request = Caller.request(kind, meta, payload, Frames.packWithin(deadline.left))
    connection.send(request, deadline)
    await(connection, request, deadline)
  }

  private def heard(connection: Connection, refusal: Option[DisklessException] = None): Unit = {
    routes.worked(connection.peer, connection.heardAt)
    strangers.remove(connection.peer.address)
    routes.learn(connection.leader, connection.roster)
    refusal.map(_.reason).foreach { reason =>
      if (reason == Errors.Garbled) routes.failed(connection.peer) // The agent hangs up, too.
      else if (Errors.Hindrances(reason)) routes.hindered(connection.peer)
    }
  }

  /** A connection on which nothing came is dead; on a live one only this request is late. */
  private def silent(connection: Connection, since: Long): DisklessException = {
    routes.failed(connection.peer)
    if (connection.heardAt - since < 0) connection.close("did not answer in time")
    Errors.unavailable(s"${connection.peer} did not answer in time")
  }

  private def knock(peer: Peer): Greeting = new Greeting(
    peer, descriptor.identity, Label, resolve, routes.failed,
    (connection, welcome) => {
      strangers.clear()
      isRestored |= epoch.exists(_ != welcome.epoch)
      epoch = epoch.orElse(Some(welcome.epoch))
      if (!routes.hasRoster) routes.replace(welcome.agents, connection.roster)
      routes.learn(connection.leader, connection.roster)
    })

  /** Asks for the roster, once at a time; nobody waits for it. */
  private def refresh(connection: Connection): Unit =
    if (refreshing.compareAndSet(false, true)) {
      val request = Caller.request(Kind.Roster, Messages.meta(), Nil)
      request.reply.whenComplete { (reply, _) =>
        try if (reply != null) {
          routes.replace(Messages.peers(reply.json.path("agents")), connection.roster)
          forgetDeparted()
        } finally refreshing.set(false)
      }
      if (!connection.post(request)) refreshing.set(false)
    }

  private def forgetDeparted(): Unit = {
    val known = routes.peers.map(_.address).toSet
    greetings.values.removeIf { greeting =>
      val departed = !known(greeting.peer.address)
      if (departed) greeting.close("is no agent's address any more")
      departed
    }
  }

  /** Every agent we know of failed: perhaps all have been restarted elsewhere. */
  private def rereadDescriptor(): Unit = descriptor.reread().foreach { found =>
    if (found.cluster == descriptor.cluster) routes.add(found.gateways)
    else {
      throw new DisklessException(Errors.NoCluster,
        s"cluster ${descriptor.identity.name} was replaced: ${descriptor.cluster} does not " +
          s"answer, the name means ${found.cluster} now; restart Spark to use that one",
        retryable = false)
    }
  }
}

private[spark] object Caller {
  /** An agent that does not greet within this is passed over for another. */
  val ConnectNanos: Long = TimeUnit.SECONDS.toNanos(3)
  /** A little longer than a lease lasts of whom nothing is heard any more. */
  val LeaseNanos: Long = TimeUnit.SECONDS.toNanos(8)
  /** Connections kept for the next uploads. */
  private val IdleMax = 4
  /** For the agents' logs: host and process. */
  private val Label = "spark " + ManagementFactory.getRuntimeMXBean.getName

  def request(
      kind: Int, meta: ObjectNode, payload: Seq[ByteBuffer], within: Int = 0): Request = {
    val encoded = Messages.encode(meta)
    if (encoded.length > Frames.MetaBytesMax) {
      throw new DisklessException("BadFrame",
        s"${encoded.length} bytes of meta, at most ${Frames.MetaBytesMax} fit", retryable = false)
    }
    new Request(kind, encoded, payload, within)
  }
}
