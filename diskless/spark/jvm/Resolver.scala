package io.diskless.spark

import java.net.InetSocketAddress
import java.util.concurrent.{
  CompletableFuture, ConcurrentHashMap, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}

import scala.util.control.NonFatal

/** Where a gateway is, by its HOST:PORT.
  *
  * A name server that does not answer holds up a look-up for many seconds, and nothing ends it. So
  * names are looked up on threads of their own: who waits for one has a deadline, the I/O thread
  * continues, and no lock is held meanwhile.
  */
private[spark] trait Resolver {
  def apply(gateway: String): CompletableFuture[InetSocketAddress]
}

private[spark] object Resolver {
  /** Look-ups at once; more wait for their turn. */
  private val ThreadsMax = 16
  private val WaitingMax = 1024
  private val IdleSeconds = 10L
  /** What needs no look-up: an address of either kind, as it is written before a port. */
  private val Literal = """\[[0-9a-fA-F:.%]+\]|[0-9]{1,3}(\.[0-9]{1,3}){3}""".r

  private lazy val threads = {
    val pool = new ThreadPoolExecutor(ThreadsMax, ThreadsMax, IdleSeconds, TimeUnit.SECONDS,
      new LinkedBlockingQueue[Runnable](WaitingMax), (task: Runnable) => {
        val thread = new Thread(task, "diskless-names")
        thread.setDaemon(true)
        thread
      })
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  object Names extends Resolver {
    /** A name that hangs holds one thread, however often it is asked for. */
    private val underWay = new ConcurrentHashMap[String, CompletableFuture[InetSocketAddress]]

    override def apply(gateway: String): CompletableFuture[InetSocketAddress] = {
      val (host, port) = split(gateway)
      if (Literal.matches(host)) CompletableFuture.completedFuture(lookUp(host, port))
      else {
        try {
          val found = underWay.computeIfAbsent(gateway,
            _ => CompletableFuture.supplyAsync(() => lookUp(host, port), threads))
          found.whenComplete((_, _) => underWay.remove(gateway, found))
          found
        } catch {
          case NonFatal(error) => CompletableFuture.failedFuture(
            Errors.unavailable(s"$gateway: too many names are being looked up", error))
        }
      }
    }
  }

  /** The parts of HOST:PORT; an IPv6 address keeps its brackets. */
  private def split(gateway: String): (String, Int) = {
    val colon = gateway.lastIndexOf(':')
    (gateway.substring(0, colon), gateway.substring(colon + 1).toInt)
  }

  /** Unresolved if nobody knows the name. */
  private def lookUp(host: String, port: Int): InetSocketAddress =
    new InetSocketAddress(host.stripPrefix("[").stripSuffix("]"), port)
}
