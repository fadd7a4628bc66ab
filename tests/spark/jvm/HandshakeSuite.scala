package io.diskless.spark

import java.net.ServerSocket
import java.nio.file.Files
import java.util.concurrent.ExecutionException

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.hadoop.security.AccessControlException

/** Both sides prove themselves, and who cannot gets nothing. */
class HandshakeSuite extends Suite {
  test("nothing is asked of an agent before both have proved themselves") { _ =>
    val gateway = new FakeGateway
    FakeGateway.using(gateway) {
      FakeGateway.caller(5000, gateway).call(Kind.Summary, Messages.path("/"), "summary")
      Check.equal(gateway.kinds, Seq(Kind.Hello, Kind.Prove, Kind.Summary))
    }
  }

  test("no two handshakes are alike, and no key is in any") { env =>
    val gateway = new FakeGateway
    FakeGateway.using(gateway) {
      for (_ <- 0 until 20) gateway.connect()
      val sent = gateway.frames.asScala.toSeq.map(_._2)
      val nonces = sent.map(_.path("nonce").asText).filter(_.nonEmpty)
      Check.equal(nonces.distinct.size, 20)
      Check.equal(sent.map(_.path("proof").asText).filter(_.nonEmpty).distinct.size, 20)
      val token = env.conf.get("fs.diskless.token")
      Check.that(!Credential.parse(token).toString.contains(token.split('.').last))
    }
  }

  private val strangers = Seq(
    "an impostor" -> Manner.impostor, "a mirror" -> Manner.Mirror,
    "one that sends no challenge" -> new Manner.Fixed(Kind.Done, "{}"),
    "one whose nonce is none" -> new Manner.Fixed(
      Kind.Done, """{"slot": 0, "nonce": "x", "proof": "y"}"""))

  test("whoever cannot prove itself gets no proof and is said so") { _ =>
    for ((who, manner) <- strangers) {
      val gateway = new FakeGateway(manner)
      FakeGateway.using(gateway) {
        val error = refusal(gateway)
        Check.equal(error.reason, Errors.Unauthorized)
        Check.equal(error.getMessage,
          s"the process at ${gateway.address} is not an agent of cluster fake")
        Threads.eventually(gateway.ending.isDefined)
        Check.that(gateway.kinds == Seq(Kind.Hello), s"$who got ${gateway.kinds}")
      }
    }
  }

  test("a challenge that was recorded is of no use") { _ =>
    val honest = new FakeGateway
    var recorded = ""
    FakeGateway.using(honest) {
      honest.connect()
      recorded = Manner.Honest.challenge(honest, honest.frames.peek._2)._2
    }
    val replaying = new FakeGateway(new Manner.Fixed(Kind.Done, recorded))
    FakeGateway.using(replaying) {
      Check.equal(refusal(replaying).reason, Errors.Unauthorized)
      Check.equal(replaying.kinds, Seq(Kind.Hello))
    }
  }

  test("an agent of another slot than the one that was dialled gets no proof") { _ =>
    val gateway = new FakeGateway(slot = 4)
    FakeGateway.using(gateway) {
      val error = Check.throws[ExecutionException](
        gateway.greeting(peer = gateway.peer.copy(slot = 2)).greeted.get()).getCause
      Check.that(error.getMessage.contains("turned out to be agent-4"), error.getMessage)
      Check.equal(gateway.kinds, Seq(Kind.Hello))
    }
  }

  test("a stranger's large frame is not taken") { _ =>
    val gateway = new FakeGateway(new Manner.Fixed(Kind.Done, s"""{"x": "${"x" * 10000}"}"""))
    FakeGateway.using(gateway) {
      Check.that(refusal(gateway).getMessage.contains("before any proof"))
    }
  }

  test("an impostor where an agent was is passed over") { _ =>
    val (honest, impostor) = (new FakeGateway(slot = 1), new FakeGateway(Manner.impostor))
    val refusing = new FakeGateway(Manner.refusing("you are revoked"), slot = 2)
    honest.others = Seq(impostor, refusing)
    FakeGateway.using(honest, impostor, refusing) {
      for (_ <- 0 until 8) { // Whichever it begins with.
        val caller = FakeGateway.caller(20000, impostor, honest, refusing)
        caller.call(Kind.Summary, Messages.path("/"), "summary")
        caller.call(Kind.Summary, Messages.path("/"), "summary")
      }
      Check.that((impostor.kinds ++ refusing.kinds).forall(_ == Kind.Hello))
    }
  }

  test("an impostor while all agents are away for a moment does not end an operation") { _ =>
    val (honest, impostor) = (new FakeGateway(slot = 1), new FakeGateway(Manner.impostor))
    honest.others = Seq(impostor)
    FakeGateway.using(honest, impostor) {
      val caller = FakeGateway.caller(600, honest)
      caller.call(Kind.Summary, Messages.path("/"), "summary")
      honest.close()
      val error = Check.throws[DisklessException](
        caller.call(Kind.Summary, Messages.path("/"), "summary"))
      Check.equal(error.reason, Errors.DeadlineExceeded)
      Check.that(impostor.kinds.nonEmpty && impostor.kinds.forall(_ == Kind.Hello))
    }
  }

  test("a refusal is reported when no agent proves itself") { _ =>
    val closed = new ServerSocket(0)
    closed.close()
    val dead = Peer(7, s"127.0.0.1:${closed.getLocalPort}", "", "localhost", up = true)
    val refusing = new FakeGateway(Manner.refusing("the token 'q1' has expired"))
    val impostor = new FakeGateway(Manner.impostor, slot = 3)
    FakeGateway.using(refusing, impostor) {
      val caller = FakeGateway.callerOf(20000, None, Seq(dead, refusing.peer, impostor.peer))
      val error = Check.throws[DisklessException](
        caller.call(Kind.Summary, Messages.path("/"), "summary"))
      Check.equal(error.reason, Errors.Unauthorized)
      Check.that(!error.retryable)
      Check.that(error.getMessage.contains("the token 'q1' has expired"), error.getMessage)
      Check.that(error.getMessage.contains("fs.diskless.token"), error.getMessage)
    }
  }

  test("a stranger's words are one line, and not long") { _ =>
    val gateway = new FakeGateway(Manner.refusing("a\\nb\\r" + "x" * 5000))
    FakeGateway.using(gateway) {
      val message = refusal(gateway).getMessage
      Check.that(!message.exists(_.isControl) && message.length < 500, message)
    }
  }

  test("a token of another cluster is refused by every agent, in one line") { env =>
    val conf = new Configuration(env.conf)
    conf.set("fs.diskless.token", token(Credential.client("another", "5a" * 32)))
    val fs = FileSystem.newInstance(new Path("diskless:///").toUri, conf)
    val error = Check.throws[AccessControlException](fs.exists(new Path("/a")))
    Check.that(error.getMessage.contains("fs.diskless.token"), error.getMessage)
    Check.that(!error.getMessage.contains('\n'), error.getMessage)
  }

  test("a token of another cluster than the descriptor's is refused, and not replaced") { env =>
    val file = Files.createTempFile("orders", ".json")
    Files.writeString(file, s"""{"cluster": "mine", "name": "orders", "secret": "${"5a" * 32}",
      "gateways": [{"slot": 0, "gateway": "127.0.0.1:9", "socket": "", "host": "", "up": true}]}""")
    val conf = new Configuration(env.conf)
    conf.unset("fs.diskless.gateways")
    conf.set("fs.diskless.descriptor", file.toString)
    conf.set("fs.diskless.token", token(Credential.client("another", "5a" * 32)))
    val error = Check.throws[DisklessException](Clusters.find("", conf))
    Check.equal(error.reason, Errors.Unauthorized)
    Check.that(error.getMessage.contains("another cluster than orders: for another"),
      error.getMessage)
    conf.set("fs.diskless.token", token(Credential.client("mine", "5a" * 32)))
    Clusters.find("", conf)
    Files.delete(file)
  }

  test("a token whose key is wrong finds nobody who could have made it") { env =>
    val parts = env.conf.get("fs.diskless.token").split('.')
    val conf = new Configuration(env.conf)
    conf.set("fs.diskless.token", s"${parts(0)}.${parts(1)}.${"A" * 43}")
    val fs = FileSystem.newInstance(new Path("diskless:///").toUri, conf)
    val error = Check.throws[AccessControlException](fs.exists(new Path("/a")))
    Check.that(error.getMessage.contains("is not an agent of cluster"), error.getMessage)
  }

  test("what is no token is said without showing it") { env =>
    for (bad <- Seq("hunter2", "d1.hunter2", "d1.hunter2.hunter2", "d1.e30.hunter2", "d2.a.b")) {
      val conf = new Configuration(env.conf)
      conf.set("fs.diskless.token", bad)
      val error = Check.throws[DisklessException](Clusters.find("", conf))
      Check.equal(error.reason, Errors.Unauthorized)
      Check.that(error.getMessage.contains("no token of diskless"), error.getMessage)
      Check.that(!error.getMessage.contains("hunter2"), error.getMessage)
    }
  }

  private def token(credential: Credential): String = s"d1.${credential.text}.${"A" * 43}"

  private def refusal(gateway: FakeGateway): DisklessException =
    Check.throws[ExecutionException](gateway.greeting().greeted.get()).getCause
      .asInstanceOf[DisklessException]
}
