package io.diskless.spark

import java.util.Locale

/** What others call the hosts that agents know as `name/address`.
  *
  * Spark compares the hosts of blocks, letter by letter, with what its executors are registered
  * by: an address, unless it was told a name, which may have a domain. Of many names for a block
  * it takes any three. So one that no executor has takes the place of one that counts.
  */
private[spark] object HostNames {
  private val Address = """\d+(\.\d+){3}|\[?[0-9a-f]*:[0-9a-f:.%]*\]?""".r

  /** The names of executors there; all that agents know it by if there are none. */
  def of(host: String, executors: Set[String]): Vector[String] = {
    val there = ofExecutors(host, executors)
    if (there.nonEmpty) there else known(host)
  }

  def hasExecutor(host: String, executors: Set[String]): Boolean =
    ofExecutors(host, executors).nonEmpty

  private def ofExecutors(host: String, executors: Set[String]): Vector[String] =
    executors.filter(executor => known(host).exists(isSame(_, executor))).toVector.sorted

  private def known(host: String): Vector[String] =
    host.split("/", 2).toVector.filter(_.nonEmpty).distinct

  private def isSame(one: String, other: String): Boolean = {
    val (a, b) = (plain(one), plain(other))
    a == b || (isName(a) && isName(b) && (a.startsWith(s"$b.") || b.startsWith(s"$a.")))
  }

  /** Spark has brackets around an IPv6 address. */
  private def plain(host: String): String =
    host.toLowerCase(Locale.ROOT).stripPrefix("[").stripSuffix("]")

  private def isName(host: String): Boolean = !Address.matches(host)
}
