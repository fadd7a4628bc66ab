package io.diskless.spark

import java.net.{InetSocketAddress, SocketAddress, UnixDomainSocketAddress}
import java.nio.file.{Files, Path}
import java.util.concurrent.{CompletableFuture, CompletionException}
import javax.net.ssl.{SSLEngine, SSLException}

import scala.util.control.NonFatal

/** A connection in the making: by Unix socket if the peer is here, else TCP; with TLS if the
  * cluster has it; then both sides prove themselves.
  *
  * Whether a socket file belongs to the peer is for the handshake to tell: another host, or
  * another cluster, may use the same path. All threads that want this connection wait for
  * the one handshake, and none of them carries it out: the first may be interrupted.
  *
  * Who has not proved to be an agent gets no proof from us, and is not believed: whatever it
  * said, it fails with a retryable Unauthorized, and another agent may know better.
  */
private[spark] final class Greeting(
    val peer: Peer, identity: Identity, label: String, resolve: Resolver,
    onLost: Peer => Unit, onGreeted: (Connection, Welcome) => Unit) {
  @volatile private var current: Connection = _
  @volatile private var closed = false

  /** Fails with Unavailable or Unauthorized. */
  val greeted: CompletableFuture[Connection] = {
    val isHere = peer.socket.nonEmpty && Files.exists(Path.of(peer.socket))
    if (!isHere) greetAfar()
    else {
      val here = greet(UnixDomainSocketAddress.of(peer.socket))
      if (peer.gateway.isEmpty) here else here.exceptionallyCompose(_ => greetAfar())
    }
  }

  private def greetAfar(): CompletableFuture[Connection] =
    if (peer.gateway.isEmpty) {
      CompletableFuture.failedFuture(Errors.unavailable(s"$peer is not on this host"))
    } else {
      resolve(peer.gateway).thenCompose { where =>
        if (closed) CompletableFuture.failedFuture(Errors.unavailable(s"$peer: its name came late"))
        else greet(where)
      }
    }

  def usable: Boolean =
    !greeted.isCompletedExceptionally && (current == null || current.usable || !greeted.isDone)

  def close(why: String): Unit = {
    closed = true
    greeted.completeExceptionally(Errors.unavailable(s"$peer: $why"))
    if (current != null) current.close(why)
  }

  private def greet(where: SocketAddress): CompletableFuture[Connection] = {
    val connection =
      new Connection(IoThread.shared, peer, where, engineFor(where), () => onLost(peer))
    current = connection
    val handshake = new Handshake(identity.credential, label)
    ask(connection, Kind.Hello, Messages.encode(handshake.knock))
      .handle[CompletableFuture[Reply]] { (reply, error) =>
        if (error != null) throw failure(where, error)
        ask(connection, Kind.Prove, answer(handshake, connection, where, reply))
      }
      .thenCompose[Reply](proved => proved)
      .handle[Connection] { (reply, error) =>
        try {
          if (error != null) throw Greeting.unwrap(error)
          welcome(connection, reply)
        } catch {
          case NonFatal(why) =>
            connection.close(why.getMessage)
            throw new CompletionException(Greeting.asRefusal(peer, why))
        }
      }
  }

  /** None for a Unix socket: what goes through it stays on this host. */
  private def engineFor(where: SocketAddress): Option[SSLEngine] = where match {
    case address: InetSocketAddress => identity.trust.map { trust =>
      val name = trust.expectedName(identity.credential.cluster, peer.slot, address.getHostString)
      trust.engine(name, address.getPort)
    }
    case _ => None
  }

  private def ask(connection: Connection, kind: Int, meta: Array[Byte])
      : CompletableFuture[Reply] = {
    val request = new Request(kind, meta, Nil)
    val sent = connection.post(request)
    assert(sent, "nothing else is under way on a new connection")
    request.reply
  }

  private def answer(
      handshake: Handshake, connection: Connection, where: SocketAddress,
      reply: Reply): Array[Byte] = {
    val challenge = reply.json
    val proof = handshake.answer(challenge).getOrElse(throw stranger(where, ""))
    connection.trusted = true
    val slot = challenge.path("slot").asInt
    if (peer.slot >= 0 && slot != peer.slot) {
      throw Errors.unavailable(s"$peer turned out to be agent-$slot")
    }
    Messages.encode(proof)
  }

  private def welcome(connection: Connection, reply: Reply): Connection = {
    if (closed) throw Errors.unavailable(s"$peer greeted too late")
    onGreeted(connection, Messages.welcome(reply.json))
    connection
  }

  /** Of whoever has not proved itself. */
  private def failure(where: SocketAddress, error: Throwable): DisklessException =
    (error, error.getCause) match {
      case (_, refused: SSLException) => stranger(where, s": ${Trust.explain(refused)}")
      case (refusal: DisklessException, _) if refusal.reason == Errors.Unauthorized =>
        Errors.unauthorized(
          s"$peer: ${Greeting.quote(refusal.getMessage)}", retryable = true, cause = refusal)
      case _ => Errors.unavailable(error.getMessage, error)
    }

  private def stranger(where: SocketAddress, why: String): DisklessException = {
    val address = where match {
      case _: InetSocketAddress => peer.gateway
      case other => other.toString
    }
    Errors.unauthorized(
      s"the process at $address is not an agent of cluster ${identity.name}$why",
      retryable = true)
  }
}

private[spark] object Greeting {
  private val QuotedCharsMax = 300

  /** Whether whoever is there refused us, rather than being unable to prove itself. */
  def isRefusal(error: Throwable): Boolean = error match {
    case refusal: DisklessException if !refusal.retryable => true
    case other => other.getCause != null && isRefusal(other.getCause)
  }

  /** A stranger's words, in one line of ours. */
  private def quote(words: String): String =
    words.take(QuotedCharsMax).replaceAll("\\p{Cntrl}", " ")

  private def unwrap(error: Throwable): Throwable = error match {
    case wrapper: CompletionException if wrapper.getCause != null => wrapper.getCause
    case other => other
  }

  private def asRefusal(peer: Peer, error: Throwable): DisklessException = error match {
    case refusal: DisklessException if refusal.reason == Errors.Unauthorized => refusal
    case other: DisklessException => Errors.unavailable(other.getMessage, other)
    case other => Errors.unavailable(s"$peer: garbled hello", other)
  }
}
