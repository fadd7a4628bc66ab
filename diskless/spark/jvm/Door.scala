package io.diskless.spark

import java.net.{InetSocketAddress, SocketAddress, UnixDomainSocketAddress}
import java.nio.file.{Files, Path}
import java.util.concurrent.{CompletableFuture, CompletionException}
import java.util.concurrent.TimeUnit.SECONDS

import scala.util.control.NonFatal

/** A connection in the making: by Unix socket if the peer is here, else TCP, then `hello`.
  *
  * Whether a socket file belongs to the peer is for the greeting to tell: another host, or
  * another cluster, may use the same path. All threads that want this connection wait for
  * the one greeting, and none of them carries it out: the first may be interrupted.
  */
private[spark] final class Door(
    val peer: Peer, cluster: String, secret: String, label: String,
    onLost: Peer => Unit, onGreeted: (Connection, Welcome) => Unit) {
  @volatile private var current: Connection = _
  @volatile private var closed = false

  /** Fails with Unavailable or Unauthorized. */
  val greeted: CompletableFuture[Connection] = {
    // A name is looked up here, on the thread of who asks: the I/O thread must not wait.
    val remote = if (peer.gateway.isEmpty) None else Some(Door.resolve(peer.gateway))
    val local = if (peer.socket.nonEmpty && Files.exists(Path.of(peer.socket))) {
      Some(UnixDomainSocketAddress.of(peer.socket))
    } else None
    (local, remote) match {
      case (Some(here), Some(there)) => greet(here).exceptionallyCompose(_ => greet(there))
      case (Some(only), None) => greet(only)
      case (None, Some(only)) => greet(only)
      case (None, None) =>
        CompletableFuture.failedFuture(Errors.unavailable(s"$peer is not on this host"))
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
    val connection = new Connection(IoThread.shared, peer, where, () => onLost(peer))
    current = connection
    val hello = Messages.meta().put("secret", secret).put("client", label)
    val request = new Request(Kind.Hello, Messages.encode(hello), Nil)
    connection.send(request, new Deadline("hello", System.nanoTime() + SECONDS.toNanos(3)))
    request.reply.handle[Connection] { (reply, error) =>
      val failure =
        if (error != null) refused(error)
        else if (closed) Some(Errors.unavailable(s"$peer greeted too late"))
        else check(connection, reply)
      failure.foreach { why =>
        connection.close(why.getMessage)
        throw new CompletionException(why)
      }
      connection
    }
  }

  private def refused(error: Throwable): Option[DisklessException] = Some(error match {
    case refusal: DisklessException if refusal.reason == Errors.Unauthorized =>
      new DisklessException(Errors.Unauthorized,
        s"$peer: ${refusal.getMessage}; set fs.diskless.secret, or fs.diskless.descriptor to " +
          "this cluster's descriptor", retryable = false)
    case other => Errors.unavailable(other.getMessage, other)
  })

  private def check(connection: Connection, reply: Reply): Option[DisklessException] =
    try {
      val welcome = Messages.welcome(reply.json)
      if (cluster.nonEmpty && welcome.cluster != cluster) {
        Some(Errors.unavailable(s"$peer belongs to another cluster, ${welcome.cluster}"))
      } else if (peer.slot >= 0 && welcome.slot != peer.slot) {
        Some(Errors.unavailable(s"$peer turned out to be agent-${welcome.slot}"))
      } else {
        onGreeted(connection, welcome)
        None
      }
    } catch { case NonFatal(error) => Some(Errors.unavailable(s"$peer: garbled hello", error)) }
}

private[spark] object Door {
  private def resolve(gateway: String): InetSocketAddress = {
    val colon = gateway.lastIndexOf(':')
    val host = gateway.substring(0, colon).stripPrefix("[").stripSuffix("]")
    new InetSocketAddress(host, gateway.substring(colon + 1).toInt)
  }
}
