package io.diskless.spark

import java.io.{ByteArrayInputStream, InterruptedIOException}
import java.net.{InetAddress, ServerSocket}
import java.nio.ByteBuffer
import java.security.{KeyFactory, KeyStore}
import java.security.cert.{Certificate, CertificateFactory}
import java.security.spec.PKCS8EncodedKeySpec
import java.util.Base64
import java.util.concurrent.{CountDownLatch, ExecutionException, TimeUnit}
import javax.net.ssl.{KeyManagerFactory, SSLContext, SSLServerSocket}

import scala.jdk.CollectionConverters._

/** Encrypted greetings. tests/spark/conftest.py puts certificates into the configuration: those of
  * agent 0 of cluster `fake`, good ones and others.
  */
class TlsSuite extends Suite {
  import TlsSuite._

  test("requests and replies of all sizes go through, in any order and in pieces") { env =>
    withGateway(env, "good") { gateway =>
      val connection = gateway.connect(trust(env))
      val sizes = Seq(0, 1, 16383, 16384, 16385, 100000, 1 << 20, 4 << 20)
      val requests = sizes.indices.map(n => stat(s"/$n"))
      requests.foreach(connection.send(_, soon))
      gateway.await(sizes.size)
      for (n <- sizes.indices.reverse) {
        gateway.answer(s"/$n", payloadBytes = sizes(n), byPieces = n % 2 == 0)
      }
      for ((request, size) <- requests.zip(sizes)) {
        Check.equal(soon.await(request.reply).get.payload, Bytes.random(size))
      }
    }
  }

  test("bulk goes both ways at once") { env =>
    withGateway(env, "good") { gateway =>
      val connection = gateway.connect(trust(env))
      val sent = (0 until 40).map(n => Bytes.random(1 << 20, n))
      val requests = sent.map { bytes =>
        Caller.request(Kind.Write, Messages.meta(), Seq(ByteBuffer.wrap(bytes)))
      }
      requests.foreach(connection.send(_, soon))
      for ((request, bytes) <- requests.zip(sent)) {
        Check.equal(soon.await(request.reply).get.payload, bytes)
      }
    }
  }

  test("small replies that have come together are all delivered") { env =>
    withGateway(env, "good") { gateway =>
      val connection = gateway.connect(trust(env))
      val requests = (0 until 200).map(n => stat(s"/$n"))
      requests.foreach(connection.send(_, soon))
      gateway.await(requests.size)
      val answered = new CountDownLatch(1)
      IoThread.shared.execute(() => answered.await()) // So that they wait in the socket.
      try requests.indices.foreach(n => gateway.answer(s"/$n"))
      finally answered.countDown()
      requests.foreach(request => Check.that(soon.await(request.reply).isDefined))
    }
  }

  test("whoever has another certificate gets nothing, and is said so") { env =>
    val wrong = Map(
      "stranger" -> "not signed by the cluster's authority", "expired" -> "has expired",
      "other-slot" -> "agent-0.fake.diskless", "other-cluster" -> "agent-0.fake.diskless",
      "early" -> "not valid yet")
    for ((name, why) <- wrong) withGateway(env, name) { gateway =>
      val error = refusal(gateway.greeting(trust(env)))
      Check.equal(error.reason, Errors.Unauthorized)
      Check.that(error.getMessage.startsWith(
        s"the process at ${gateway.address} is not an agent of cluster fake: "),
        error.getMessage)
      Check.that(error.getMessage.contains(why), error.getMessage)
      Check.that(!error.getMessage.contains('\n'), error.getMessage)
      Threads.eventually(gateway.ending.isDefined)
      Check.that(gateway.frames.isEmpty, s"$name got ${gateway.kinds}")
    }
  }

  test("a gateway whose slot is not known must have the name that all agents have") { env =>
    withGateway(env, "other-slot") { gateway =>
      val known = gateway.peer.copy(slot = Messages.UnknownSlot)
      Check.that(gateway.greeting(trust(env), known).greeted.get().usable)
    }
    withGateway(env, "other-cluster") { gateway =>
      val known = gateway.peer.copy(slot = Messages.UnknownSlot)
      Check.that(refusal(gateway.greeting(trust(env), known)).getMessage.contains("any.fake.diskless"))
    }
  }

  test("certificates of one's own name the host") { env =>
    val byHost = trust(env).map(_.copy(byHost = true))
    withGateway(env, "own-host") { gateway =>
      Check.that(gateway.connect(byHost).usable)
      Check.equal(refusal(gateway.greeting(trust(env))).reason, Errors.Unauthorized)
    }
    withGateway(env, "other-host") { gateway =>
      Check.that(refusal(gateway.greeting(byHost)).getMessage.contains("127.0.0.1"))
    }
  }

  test("an authority is taken as PEM and as DER") { env =>
    val pem = env.conf.get(s"$Prefix.good.authority")
    val der = Base64.getMimeDecoder.decode(pem.linesIterator.filterNot(_.startsWith("-")).mkString)
    withGateway(env, "good") { gateway =>
      val short = Trust.decode(Base64.getEncoder.encodeToString(der), byHost = false)
      Check.that(gateway.connect(short).usable)
    }
  }

  test("the proof is demanded inside of TLS too") { env =>
    val gateway = new FakeGateway(Manner.impostor, tls = Some(serving(env, "good")))
    FakeGateway.using(gateway) {
      Check.equal(refusal(gateway.greeting(trust(env))).getMessage,
        s"the process at ${gateway.address} is not an agent of cluster fake")
    }
  }

  test("who speaks no TLS, or an old one, gets nothing") { env =>
    val plain = new FakeGateway
    FakeGateway.using(plain) {
      val error = refusal(plain.greeting(trust(env)))
      Check.that(plain.frames.isEmpty)
      Check.that(Set(Errors.Unauthorized, Errors.Unavailable)(error.reason), s"$error")
    }
    val old = serving(env, "good").getServerSocketFactory
      .createServerSocket(0, 1, InetAddress.getLoopbackAddress).asInstanceOf[SSLServerSocket]
    old.setEnabledProtocols(Array("TLSv1.2"))
    val accepting = new Thread(() => try old.accept().getInputStream.read()
      catch { case _: java.io.IOException => () })
    accepting.start()
    try {
      val peer = Peer(0, s"127.0.0.1:${old.getLocalPort}", "", "localhost", up = true)
      val greeting = new Greeting(peer, Identity("fake", FakeGateway.Credential, trust(env)), "test",
        Resolver.Names, _ => (), (_, _) => ())
      Check.equal(refusal(greeting).reason, Errors.Unauthorized)
    } finally old.close()
  }

  test("one that stalls in the TLS handshake is a silent one, and holds up nobody") { env =>
    val silent = new ServerSocket(0, 200, InetAddress.getLoopbackAddress)
    val dead = Peer(5, s"127.0.0.1:${silent.getLocalPort}", "", "localhost", up = true)
    try withGateway(env, "good") { gateway =>
      val stalled = Threads.together((0 until 50).map(_ => () => new Greeting(
        dead, Identity("fake", FakeGateway.Credential, trust(env)), "test",
        Resolver.Names, _ => (), (_, _) => ())))
      val connection = gateway.connect(trust(env))
      val request = stat("/a")
      connection.send(request, soon)
      gateway.answer("/a")
      Check.that(soon.await(request.reply).isDefined)
      Check.that(stalled.forall(!_.greeted.isDone))
      stalled.foreach(_.close("is not waited for"))
      val error = Check.throws[DisklessException](
        FakeGateway.callerOf(900, trust(env), Seq(dead)).call(
          Kind.Stat, Messages.path("/a"), "stat /a"))
      Check.equal(error.reason, Errors.DeadlineExceeded)
      Check.that(error.getMessage.contains("did not greet in time"), error.getMessage)
    } finally silent.close()
  }

  test("a hundred connections are made at once") { env =>
    withGateway(env, "good") { gateway =>
      val greetings = Threads.together((0 until 100).map(_ => () => gateway.greeting(trust(env))))
      val connections = greetings.map(_.greeted.get(60, TimeUnit.SECONDS))
      val requests = connections.map { connection =>
        val request = Caller.request(Kind.Write, Messages.meta(), Seq(ByteBuffer.wrap(Data)))
        connection.send(request, soon)
        request
      }
      requests.foreach(request => Check.equal(soon.await(request.reply).get.payload, Data))
    }
  }

  test("interrupting one who waits, or greets, leaves the others' requests under way") { env =>
    withGateway(env, "good") { gateway =>
      val caller = FakeGateway.callerOf(20000, trust(env), Seq(gateway.peer))
      val caught = Threads.together((0 until 4).map(_ => () => {
        Thread.currentThread().interrupt()
        Check.throws[InterruptedIOException](
          caller.call(Kind.Stat, Messages.path("/a"), "stat /a"))
      }))
      Check.equal(caught.size, 4)
      val (held, waiting) = (stat("/held"), new CountDownLatch(1))
      val connection = caller.take(bulk = false, soon)
      connection.send(held, soon)
      val victim = new Thread(() => {
        waiting.countDown()
        try soon.await(held.reply)
        catch { case _: InterruptedIOException => () }
      })
      victim.start()
      waiting.await()
      victim.interrupt()
      victim.join()
      caller.call(Kind.Summary, Messages.path("/"), "summary")
      Check.that(connection.usable)
    }
  }

  test("the end of a connection is told, on both sides") { env =>
    withGateway(env, "good") { gateway =>
      gateway.connect(trust(env)).close("is not needed")
      Threads.eventually(gateway.ending.isDefined)
      Check.equal(gateway.ending, Some(""))
      val connection = gateway.connect(trust(env))
      val request = stat("/a")
      connection.send(request, soon)
      gateway.await(1)
      gateway.hangUp()
      val error = Check.throws[DisklessException](soon.await(request.reply))
      Check.that(error.getMessage.contains("closed the connection"), error.getMessage)
    }
  }

  test("there is one thread, however many connections are encrypted") { env =>
    withGateway(env, "good") { gateway =>
      gateway.connect(trust(env))
      val before = ours
      for (_ <- 0 until 20) gateway.connect(trust(env))
      Check.equal(before, 1)
      Check.equal(ours, 1)
    }
  }

  private def ours: Int =
    Thread.getAllStackTraces.keySet.asScala.count(_.getName == "diskless-io")

  private def soon = new Deadline("test", System.nanoTime() + TimeUnit.SECONDS.toNanos(60))

  private def stat(path: String): Request = Caller.request(Kind.Stat, Messages.path(path), Nil)

  private def refusal(greeting: Greeting): DisklessException =
    Check.throws[ExecutionException](greeting.greeted.get(60, TimeUnit.SECONDS)).getCause
      .asInstanceOf[DisklessException]

  private def withGateway(env: Env, certificate: String)(body: FakeGateway => Unit): Unit = {
    val gateway = new FakeGateway(tls = Some(serving(env, certificate)))
    FakeGateway.using(gateway)(body(gateway))
  }
}

private object TlsSuite {
  private val Prefix = "test.diskless.tls"
  private val Data = Bytes.random(300000)

  def trust(env: Env): Option[Trust] =
    Trust.ofPem(env.conf.get(s"$Prefix.good.authority"), byHost = false)

  def serving(env: Env, name: String): SSLContext = {
    val chain = CertificateFactory.getInstance("X.509")
      .generateCertificates(new ByteArrayInputStream(
        env.conf.get(s"$Prefix.$name.chain").getBytes)).asScala.toArray[Certificate]
    val pem = env.conf.get(s"$Prefix.$name.key").linesIterator.filterNot(_.startsWith("-"))
    val key = KeyFactory.getInstance("EC")
      .generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder.decode(pem.mkString)))
    val store = KeyStore.getInstance("PKCS12")
    store.load(null, null)
    store.setKeyEntry("agent", key, Array.emptyCharArray, chain)
    val keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm)
    keys.init(store, Array.emptyCharArray)
    val context = SSLContext.getInstance("TLS")
    context.init(keys.getKeyManagers, null, null)
    context
  }
}
