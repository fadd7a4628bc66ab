package io.diskless.spark

import java.nio.file.{Files, Path}
import java.util.concurrent.TimeUnit.{MILLISECONDS, SECONDS}

import scala.collection.mutable
import scala.util.hashing.MurmurHash3

/** Which agent to ask: bookkeeping of the roster, the leader and failures.
  *
  * Metadata and small files go to the leader, bulk to an agent on this host that is not slow;
  * different JVMs prefer different local agents, each always the same one. An agent that failed
  * is passed over for a while, longer each time until it works, and then asked last for some time
  * more: else the silent ones would have their turn again before an operation has asked all
  * others. So is one that answered that it cannot help: for as long as it takes to ask each of the
  * others once. Threads share it.
  */
private[spark] final class Routes(
    first: Seq[Peer], salt: String, clock: () => Long = () => System.nanoTime()) {
  import Routes._

  private var leader = Frames.NoLeader
  private var preferred = Vector.empty[Peer]
  private val failures = mutable.Map.empty[String, Failure]
  private var version = Unknown
  private var seenVersion = Unknown
  private var refreshedAt = 0L

  arrange(first)

  def peers: Seq[Peer] = synchronized(preferred)

  /** Whether an agent has told us of the others yet. */
  def hasRoster: Boolean = synchronized(version != Unknown)

  /** A new roster, with the version of the reply that brought it. */
  def replace(peers: Seq[Peer], version: Int): Unit = synchronized {
    if (peers.nonEmpty) {
      arrange(peers)
      this.version = version
      seenVersion = version
      refreshedAt = clock()
    }
  }

  /** More addresses to try, beside those of the roster. */
  def add(peers: Seq[Peer]): Unit = synchronized {
    val known = preferred.map(_.address).toSet
    preferred ++= peers.filterNot(peer => known(peer.address)).sortBy(preference)
  }

  /** What every reply's header tells. */
  def learn(leader: Int, version: Int): Unit = synchronized {
    this.leader = leader
    seenVersion = version
  }

  /** Whether the roster should be asked for again. Agents may differ for a moment about it. */
  def isOutdated: Boolean = synchronized {
    seenVersion != version && clock() - refreshedAt >= RefreshNanos
  }

  /** The best agent that is not in doubt; else of those that may be asked again, or of all, the
    * one whose failure is oldest.
    */
  def pick(bulk: Boolean): Peer = synchronized {
    val now = clock()
    val chosen =
      if (bulk || leader == Frames.NoLeader) None
      else preferred.find(peer => peer.slot == leader && !failedLately(peer, now))
    chosen
      .orElse(preferred.find(peer => !isDoubtful(peer, now)))
      .getOrElse(preferred.minBy(peer => failures(peer.address).doubts(now)))
  }

  /** Whether no agent has worked since it failed, however long ago that was. */
  def allFailed: Boolean = synchronized {
    failures.nonEmpty && preferred.forall(peer => failures.contains(peer.address))
  }

  /** Whether nobody may still prove to be an agent. Those at these addresses refused us, or proved
    * nothing. Before we ever met an agent: all have failed. Later one such word is nothing, since
    * a stranger may sit on a dead agent's port; the word of most of those that are up counts, if
    * no other can be reached either: some may be dead that we have as up.
    */
  def noAgentLeft(strangers: String => Boolean): Boolean = synchronized {
    val expected = preferred.filter(_.up).map(_.address)
    if (!hasRoster) allFailed
    else 2 * expected.count(strangers) > expected.size &&
      expected.forall(one => strangers(one) || failures.contains(one))
  }

  def failed(peer: Peer): Unit = synchronized {
    val now = clock()
    val known = failures.get(peer.address)
    failures(peer.address) =
      if (failedLately(peer, now)) { // Several requests were under way.
        known.get.copy(at = now, doubted = now + Doubt * math.max(known.get.skip, SkipNanosMin))
      } else {
        val skip = known.fold(SkipNanosMin) { failure =>
          math.min(math.max(2 * failure.skip, SkipNanosMin), SkipNanosMax)
        }
        Failure(now, now + skip, skip, now + Doubt * skip)
      }
    // Not even after that while: whoever leads now is named by the next reply.
    if (peer.slot == leader) leader = Frames.NoLeader
  }

  /** It answered that it cannot help for now: another may know more. */
  def hindered(peer: Peer): Unit = synchronized {
    val now = clock()
    failures(peer.address) =
      Failure(now, now + HinderedNanos, 0L, now + HinderedNanos + AskNanos * preferred.size)
    if (peer.slot == leader) leader = Frames.NoLeader
  }

  /** It was heard of, at `heardAt`: who gets round to an answer late may know less than others. */
  def worked(peer: Peer, heardAt: Long): Unit = synchronized {
    if (failures.nonEmpty && failures.get(peer.address).exists(_.at - heardAt <= 0)) {
      failures.remove(peer.address)
    }
  }

  /** The host of each slot, as the roster has it. */
  def hosts: Map[Int, String] = synchronized(preferred.map(peer => peer.slot -> peer.host).toMap)

  private def arrange(peers: Seq[Peer]): Unit = preferred = peers.sortBy(preference).toVector

  private def failedLately(peer: Peer, now: Long): Boolean =
    failures.nonEmpty && failures.get(peer.address).exists(_.until - now > 0)

  private def isDoubtful(peer: Peer, now: Long): Boolean =
    failures.nonEmpty && failures.get(peer.address).exists(_.isDoubtful(now))

  private def preference(peer: Peer): (Boolean, Boolean, Boolean, Int) = {
    val local = peer.socket.nonEmpty && Files.exists(Path.of(peer.socket))
    (!peer.up, peer.slow, !local, MurmurHash3.stringHash(s"$salt/${peer.slot}"))
  }
}

private[spark] object Routes {
  private val Unknown = -1
  val SkipNanosMin = SECONDS.toNanos(2)
  val HinderedNanos = MILLISECONDS.toNanos(500)
  /** A quick answer of one agent, and the longest pause before the next is asked. */
  val AskNanos = MILLISECONDS.toNanos(500)
  val SkipNanosMax = SECONDS.toNanos(16)
  val RefreshNanos = MILLISECONDS.toNanos(200)

  /** One that failed counts as well again after so many times as long as it is passed over. */
  val Doubt = 4

  private final case class Failure(at: Long, until: Long, skip: Long, doubted: Long) {
    def isDoubtful(now: Long): Boolean = doubted - now > 0

    /** What is smaller is asked first. */
    def doubts(now: Long): (Boolean, Long) = (until - now > 0, at - now)
  }
}
