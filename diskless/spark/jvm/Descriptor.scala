package io.diskless.spark

import java.io.IOException
import java.nio.file.{Files, NoSuchFileException, Path, Paths}
import java.util.concurrent.{ConcurrentHashMap, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.Using

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration

/** Who we are in a cluster, and whom we take for an agent of it. */
private[spark] final case class Identity(
    clusterName: String, credential: Credential, trust: Option[Trust]) {
  /** For messages. */
  def name: String = if (clusterName.nonEmpty) clusterName else credential.cluster
}

/** How to reach a cluster. `reread` looks again where it was found, if that was a file. */
private[spark] final class Descriptor(
    val identity: Identity, val gateways: Seq[Peer],
    val reread: () => Option[Descriptor] = () => None) {
  def cluster: String = identity.credential.cluster
}

/** From a Hadoop configuration, a URI's authority and this user's files to a cluster.
  *
  * `fs.diskless.gateways` and `fs.diskless.token` name the default cluster outright, as
  * executors on other hosts need it, with `fs.diskless.authority` if its doors are encrypted;
  * `fs.diskless.descriptor` is the path of its descriptor; otherwise it is `default` in the
  * directory of this user's descriptors. Another authority of a URI is the name of a cluster
  * with a descriptor there, or HOST:PORT of a gateway. Whatever a descriptor holds, we are a
  * client: with an operator's key no more than a client's token is made.
  */
private[spark] object Descriptor {
  val Scheme = "diskless"
  val Token = "fs.diskless.token"
  private val Gateways = "fs.diskless.gateways"
  private val Authority = "fs.diskless.authority"
  private val ByHost = "fs.diskless.byHost"
  private val ClusterName = "fs.diskless.name"
  private val File = "fs.diskless.descriptor"
  private val Timeout = "fs.diskless.timeout"
  private val TokenVariable = "DISKLESS_TOKEN"
  private val TimeoutSecondsDefault = 30L
  private val DefaultName = "default"
  private val NamePattern = "[a-z0-9][a-z0-9-]{0,31}".r
  private val GatewayPattern = """(?:\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):\d{1,5}""".r

  def resolve(authority: String, conf: Configuration): Descriptor =
    configured(conf) match {
      case Some(found) if authority.isEmpty || authority == found.identity.clusterName ||
          found.gateways.exists(_.gateway == authority) => found
      case None if authority.isEmpty =>
        load(home.resolve(s"$DefaultName.json"), tokenOf(conf), mustFit = true)
      case other if NamePattern.matches(authority) =>
        load(home.resolve(s"$authority.json"), tokenOf(conf), mustFit = other.isEmpty)
      case _ if GatewayPattern.matches(authority) => gateway(authority, conf)
      case _ => throw noCluster(
        s"$Scheme://$authority/: '$authority' is neither a cluster's name nor HOST:PORT; write " +
          s"$Scheme:///path for the cluster of this application")
    }

  def timeoutNanos(conf: Configuration): Long = {
    val nanos = try {
      TimeUnit.MILLISECONDS.toNanos(conf.getTimeDuration(
        Timeout, TimeoutSecondsDefault, TimeUnit.SECONDS, TimeUnit.MILLISECONDS))
    } catch { case _: NumberFormatException => 0L }
    if (nanos <= 0) {
      throw new IllegalArgumentException(
        s"$Timeout is '${conf.get(Timeout)}': write a time such as 30s")
    }
    nanos
  }

  private def configured(conf: Configuration): Option[Descriptor] = {
    val gateways = conf.getTrimmedStringCollection(Gateways).asScala.toVector
    if (gateways.nonEmpty) Some(listed(gateways, conf))
    else Option(conf.getTrimmed(File)).filter(_.nonEmpty)
      .map(file => load(Paths.get(file), tokenOf(conf), mustFit = true))
  }

  private def listed(gateways: Seq[String], conf: Configuration): Descriptor = {
    gateways.find(!GatewayPattern.matches(_)).foreach { bad =>
      throw new IllegalArgumentException(
        s"$Gateways has '$bad': write HOST:PORT of agents' gateways, separated by commas")
    }
    val token = tokenOf(conf).getOrElse(throw noCluster(s"$Gateways is set but $Token is not: " +
      "`diskless spark-conf` prints both"))
    new Descriptor(
      Identity(conf.getTrimmed(ClusterName, ""), Credential.parse(token), trustOf(conf)),
      gateways.map(unknownPeer))
  }

  /** The configured token is for the configured gateways, and not for anybody else. */
  private def gateway(address: String, conf: Configuration): Descriptor =
    Option.when(configured(conf).isEmpty)(tokenOf(conf)).flatten
      .map(token => new Descriptor(
        Identity(address, Credential.parse(token), trustOf(conf)), Seq(unknownPeer(address))))
      .orElse(known().find(_.gateways.exists(_.gateway == address)))
      .getOrElse(throw noCluster(s"there is no token for gateway $address here: " +
        s"set $Token, or copy a descriptor of the cluster to this host"))

  private def tokenOf(conf: Configuration): Option[String] =
    Option(conf.getTrimmed(Token)).orElse(Option(System.getenv(TokenVariable)))
      .filter(_.nonEmpty)

  private def trustOf(conf: Configuration): Option[Trust] =
    Trust.decode(conf.getTrimmed(Authority, ""), conf.getBoolean(ByHost, false))

  private def unknownPeer(gateway: String): Peer =
    Peer(Messages.UnknownSlot, gateway, socket = "", host = "", up = true)

  private def home: Path = Option(System.getenv("DISKLESS_HOME")).filter(_.nonEmpty)
    .map(Paths.get(_)).getOrElse(Paths.get(System.getProperty("user.home"), ".diskless"))

  private def known(): Seq[Descriptor] =
    if (!Files.isDirectory(home)) Nil
    else Using.resource(Files.newDirectoryStream(home, "*.json")) { files =>
      files.asScala.toVector.flatMap(tryLoad)
    }

  private def tryLoad(file: Path): Option[Descriptor] =
    try Some(load(file, None, mustFit = false))
    catch { case _: DisklessException => None } // Somebody else's file.

  /** A token that must fit is for this cluster and no other; one that need not is for the
    * configured cluster, and used here if that is the same. */
  private def load(file: Path, token: Option[String], mustFit: Boolean): Descriptor =
    try {
      val node = Messages.decode(Files.readAllBytes(file))
      val gateways = Messages.peers(node.path("gateways"))
      val credential = credentialOf(node, token, mustFit)
      if (gateways.isEmpty || credential.isEmpty) {
        throw noCluster(s"$file has no gateways or no token: start the cluster with `diskless up`")
      }
      val trust = Trust.ofPem(
        node.path("authority").asText, byHost = node.path("by_host").asBoolean(false))
      new Descriptor(
        Identity(node.path("name").asText, credential.get, trust), gateways, () => tryLoad(file))
    } catch {
      case _: NoSuchFileException => throw noCluster(
        s"no cluster '${nameOf(file)}' is known here ($file does not exist): write " +
          s"$Scheme:///path for the cluster of this application, start one with `diskless up`, " +
          s"or set $Gateways and $Token (`diskless spark-conf` prints them)")
      case error: JsonProcessingException =>
        throw noCluster(s"$file is no descriptor: ${error.getOriginalMessage}")
      case error: DisklessException => throw error
      case error: IOException => throw noCluster(s"$file cannot be read: ${error.getMessage}")
    }

  /** What we were given, if it is for that cluster; else what its descriptor has. */
  private def credentialOf(
      node: JsonNode, token: Option[String], mustFit: Boolean): Option[Credential] = {
    val cluster = node.path("cluster").asText
    val (own, key) = (node.path("token").asText, node.path("secret").asText)
    val given = token.map(Credential.parse)
    given.filter(mustFit && _.cluster != cluster).foreach { wrong =>
      throw Errors.unauthorized(s"that token is for another cluster than " +
        s"${node.path("name").asText}: for ${wrong.cluster} ($Token, or $TokenVariable)")
    }
    given.filter(_.cluster == cluster)
      .orElse(Option.when(own.nonEmpty)(Credential.parse(own)))
      .orElse(Option.when(key.nonEmpty)(Credential.client(cluster, key)))
  }

  private def nameOf(file: Path): String = file.getFileName.toString.stripSuffix(".json")

  private def noCluster(message: String): DisklessException =
    new DisklessException(Errors.NoCluster, message, retryable = false)
}

/** All clusters that this JVM uses, for as long as it lives.
  *
  * Hadoop makes an AbstractFileSystem for every FileContext and closes none, so connections
  * belong to the JVM and not to a file system.
  */
private[spark] object Clusters {
  private val callers = new ConcurrentHashMap[Key, Caller]

  def find(authority: String, conf: Configuration): Caller = {
    val timeoutNanos = Descriptor.timeoutNanos(conf)
    val found = Descriptor.resolve(Option(authority).getOrElse(""), conf)
    // Where a cluster's agents are now, its caller knows better than a file.
    callers.computeIfAbsent(Key(found.identity, timeoutNanos), _ => new Caller(found, timeoutNanos))
  }

  private final case class Key(identity: Identity, timeoutNanos: Long)
}
