package io.diskless.spark

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.security.{MessageDigest, SecureRandom}
import java.util.{Base64, HexFormat}
import javax.crypto.Mac
import javax.crypto.spec.SecretKeySpec

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/** What a principal claims to be, as it is written, and the key that proves it.
  *
  * A token is both. The key leaves this class in no message and no text.
  */
private[spark] final class Credential private (
    val text: String, key: Array[Byte], val cluster: String) {
  /** What is equal is the same principal with the same key. */
  override def equals(other: Any): Boolean = other match {
    case that: Credential => text == that.text && MessageDigest.isEqual(key, that.rawKey)
    case _ => false
  }

  override def hashCode: Int = text.hashCode

  override def toString: String = "Credential(...)"

  /** HMAC-SHA-256 over all facts, each behind its length, in hexadecimal digits. */
  def prove(facts: String*): String = {
    val mac = Credential.macOf(key)
    mac.update(Credential.ProofLabel)
    for (fact <- facts) {
      val data = fact.getBytes(UTF_8)
      mac.update(ByteBuffer.allocate(Integer.BYTES).putInt(data.length).array)
      mac.update(data)
    }
    HexFormat.of().formatHex(mac.doFinal())
  }

  private def rawKey: Array[Byte] = key
}

private[spark] object Credential {
  private val Version = "d1"
  private val TokenCharsMax = 4096
  private val KeyBytes = 32
  private val ProofLabel = "diskless handshake 1".getBytes(UTF_8)
  private val PrincipalLabel = "diskless principal 1\u0000".getBytes(UTF_8)
  /** Under which an operator's own Spark appears in the audit, as `diskless spark-conf` has it. */
  private val NameDefault = "spark"

  /** Throws Unauthorized; nothing of the token is in the message. */
  def parse(token: String): Credential =
    token.trim.split("\\.", -1) match {
      case Array(Version, text, key) if token.length <= TokenCharsMax =>
        try new Credential(text, Base64.getUrlDecoder.decode(key), clusterOf(text))
        catch { case NonFatal(_) => throw unusable("it is damaged: copy all of it") }
      case _ => throw unusable(
        s"it begins with $Version. and comes from `diskless spark-conf` or `diskless token create`")
    }

  /** For who has the cluster's key: no more than a client of all paths is made of it. */
  def client(cluster: String, keyHex: String): Credential = {
    val claims = Messages.meta()
      .put("cluster", cluster).put("role", "client").put("name", NameDefault)
    claims.putArray("paths").add("/")
    claims.put("writes", true)
    val text = Base64.getUrlEncoder.withoutPadding.encodeToString(Messages.encode(claims))
    val root = try HexFormat.of().parseHex(keyHex)
    catch { case _: IllegalArgumentException => Array.emptyByteArray }
    if (root.length != KeyBytes) throw unusable("the descriptor's key is not one of a cluster")
    val mac = macOf(root)
    mac.update(PrincipalLabel)
    new Credential(text, mac.doFinal(text.getBytes(UTF_8)), cluster)
  }

  private def clusterOf(text: String): String = {
    val cluster = Messages.decode(Base64.getUrlDecoder.decode(text)).path("cluster").asText
    require(cluster.nonEmpty)
    cluster
  }

  private def macOf(key: Array[Byte]): Mac = {
    val mac = Mac.getInstance("HmacSHA256")
    mac.init(new SecretKeySpec(key, "HmacSHA256"))
    mac
  }

  private def unusable(why: String): DisklessException =
    Errors.unauthorized(s"that is no token of diskless: $why")
}

/** The calling side of one handshake: docs/frames.md is the specification.
  *
  * The agent proves itself first, and one that cannot gets nothing. What is sent is of no use to
  * anybody, and of none in another handshake.
  */
private[spark] final class Handshake(credential: Credential, label: String) {
  import Handshake._

  private val nonce = {
    val bytes = new Array[Byte](NonceChars / 2)
    Random.nextBytes(bytes)
    HexFormat.of().formatHex(bytes)
  }

  def knock: ObjectNode = Messages.meta()
    .put("claims", credential.text).put("nonce", nonce).put("client", label)

  /** What to answer; None if the other side has not proved itself. */
  def answer(challenge: JsonNode): Option[ObjectNode] = {
    val (slot, theirs) = (challenge.path("slot"), challenge.path("nonce"))
    val wellFormed = slot.isInt && theirs.isTextual && NoncePattern.matches(theirs.asText)
    lazy val facts = Seq(Door, credential.cluster, slot.asInt.toString, nonce, theirs.asText,
      credential.text, "")
    val isProved = wellFormed && MessageDigest.isEqual(
      challenge.path("proof").asText.getBytes(UTF_8),
      credential.prove("agent" +: facts: _*).getBytes(UTF_8))
    Option.when(isProved)(Messages.meta().put("proof", credential.prove("caller" +: facts: _*)))
  }
}

private[spark] object Handshake {
  private val Door = "gateway"
  private val NonceChars = 32
  private val NoncePattern = s"[0-9a-zA-Z]{$NonceChars}".r
  private val Random = new SecureRandom
}
