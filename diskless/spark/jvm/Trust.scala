package io.diskless.spark

import java.io.ByteArrayInputStream
import java.nio.ByteBuffer
import java.security.KeyStore
import java.security.cert.{
  CertificateException, CertificateExpiredException, CertificateFactory,
  CertificateNotYetValidException, CertPathBuilderException, CertPathValidatorException}
import java.util.Base64
import javax.net.ssl.{SSLContext, SSLEngine, TrustManagerFactory}

import scala.jdk.CollectionConverters._

/** Whom this JVM takes for an agent of a cluster whose doors are encrypted.
  *
  * Only a process with a certificate that `authority` signed, with the name that is expected:
  * that of a slot, wherever it is, or with `byHost` that of the host.
  */
private[spark] final case class Trust(authority: String, byHost: Boolean) {
  /** Made once: it takes a moment, and remembers sessions. */
  private lazy val context: SSLContext = {
    val store = KeyStore.getInstance(KeyStore.getDefaultType)
    store.load(null, null)
    for ((certificate, n) <- Trust.certificates(authority).zipWithIndex) {
      store.setCertificateEntry(s"authority-$n", certificate)
    }
    val trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm)
    trusted.init(store)
    val made = SSLContext.getInstance(Trust.Protocol)
    made.init(null, trusted.getTrustManagers, null)
    made
  }

  /** Begins a connection that comes to nothing, so that most of what it takes is loaded here and
    * not on the I/O thread. Throws IllegalArgumentException if that is no certificate.
    */
  def prepare(): Unit = {
    val trial = engine("localhost", 0)
    trial.beginHandshake()
    trial.wrap(
      ByteBuffer.allocate(0), ByteBuffer.allocate(trial.getSession.getPacketBufferSize))
  }

  def expectedName(cluster: String, slot: Int, host: String): String =
    if (byHost) host
    else if (slot < 0) s"any.$cluster.diskless"
    else s"agent-$slot.$cluster.diskless"

  /** For one connection to whoever must have that name. */
  def engine(name: String, port: Int): SSLEngine = {
    val engine = context.createSSLEngine(name, port)
    engine.setUseClientMode(true)
    val parameters = engine.getSSLParameters
    parameters.setProtocols(Array(Trust.Protocol))
    parameters.setCipherSuites(Array(Trust.CipherSuite))
    parameters.setEndpointIdentificationAlgorithm("HTTPS")
    engine.setSSLParameters(parameters)
    engine
  }
}

private[spark] object Trust {
  private val Protocol = "TLSv1.3"
  /** Whoever speaks TLS 1.3 has it. It costs a JVM the least: ChaCha20 takes 15 times as long. */
  private val CipherSuite = "TLS_AES_128_GCM_SHA256"

  /** From a property: a certificate, PEM or DER, in base64. None if it is empty. */
  def decode(authority: String, byHost: Boolean): Option[Trust] =
    Option.when(authority.nonEmpty)(Trust(authority, byHost))

  /** From a descriptor, which has it as PEM. */
  def ofPem(pem: String, byHost: Boolean): Option[Trust] =
    decode(Base64.getEncoder.encodeToString(pem.getBytes("US-ASCII")), byHost)

  /** What is wrong with whoever showed a certificate that was refused. */
  def explain(error: Throwable): String = {
    val causes = Iterator.iterate(error)(_.getCause).takeWhile(_ != null).take(CausesMax).toVector
    def found(what: PartialFunction[Throwable, String]): Option[String] =
      causes.collectFirst(what)
    found {
      case expired: CertificateExpiredException =>
        s"its certificate has expired (${expired.getMessage})"
      case early: CertificateNotYetValidException =>
        s"its certificate is not valid yet (${early.getMessage})"
    }.orElse(found {
      case _: CertPathBuilderException | _: CertPathValidatorException =>
        "its certificate is not signed by the cluster's authority"
    }).orElse(found {
      case wrong: CertificateException => s"its certificate is another's (${wrong.getMessage})"
    }).getOrElse(s"TLS failed (${error.getMessage})")
  }

  private val CausesMax = 10

  private def certificates(authority: String) = {
    val found = try {
      val bytes = new ByteArrayInputStream(Base64.getMimeDecoder.decode(authority))
      CertificateFactory.getInstance("X.509").generateCertificates(bytes).asScala.toVector
    } catch {
      case error @ (_: CertificateException | _: IllegalArgumentException) =>
        throw unusable(error)
    }
    if (found.isEmpty) throw unusable(null)
    found
  }

  private def unusable(cause: Throwable): IllegalArgumentException =
    new IllegalArgumentException("fs.diskless.authority is no certificate: it is that of the " +
      "cluster's authority, PEM or DER, in base64, as `diskless spark-conf` prints it", cause)
}
