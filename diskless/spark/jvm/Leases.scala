package io.diskless.spark

import java.io.IOException
import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path
import org.apache.spark.SparkEnv
import org.apache.spark.sql.diskless.LiveQueries

/** Which application this JVM belongs to. Agents let one application at a time write to a
  * checkpoint; its driver and its executors share that lease. */
private[spark] object Application {
  /** A property of the application that is set to false where it shall have no part in leases. */
  private val Property = "spark.hadoop.fs.diskless.lease"
  private val NameCharsMax = 60

  /** Empty outside of Spark, before an application has its id, and where leases are off. */
  def label: String = Option(SparkEnv.get).map(_.conf).filter(_.getBoolean(Property, true))
    .flatMap { conf =>
      conf.getOption("spark.app.id").map { id =>
        val name = conf.get("spark.app.name", "").take(NameCharsMax)
        val host = conf.get("spark.driver.host", "")
        s"$id ($name) on $host since ${conf.get("spark.app.startTime", "0")}"
      }
    }.getOrElse("")

  /** Queries run there. */
  def isDriver: Boolean = Option(SparkEnv.get).exists(_.executorId == "driver")
}

/** Keeps the leases of this driver's queries alive between their puts, and ends them with their
  * queries: a batch may take longer than a lease, and a stopped query must not block the next. */
private[spark] object Leases {
  private val TickMillis = 1000L
  /** A lease lasts three times as long. */
  private val TicksPerSign = 2
  /** A log that is only read belongs to no query here; it is forgotten after so many ticks. */
  private val IdleTicksMax = 60

  private final class Watched(val caller: Caller, val root: String) {
    /** Of the query there, when it was last seen. */
    var run: Option[UUID] = None
    var ticks = 0
  }

  private val watched = new ConcurrentHashMap[String, Watched]

  private lazy val clock = {
    val made = Executors.newSingleThreadScheduledExecutor { (task: Runnable) =>
      val thread = new Thread(task, "diskless-leases")
      thread.setDaemon(true)
      thread
    }
    made.scheduleWithFixedDelay(() => tick(), TickMillis, TickMillis, TimeUnit.MILLISECONDS)
    made
  }

  /** A log of offsets was opened, by a query or by a reader of its state. If no run that is known
    * here still lives, then what this application had there has ended, and so has what bars it: a
    * new run reads a checkpoint that went back anew. A run that was only held up is known. */
  def watch(caller: Caller, offsets: Path, root: String): Unit =
    if (Application.label.nonEmpty && Application.isDriver) {
      val at = key(offsets.getParent)
      val own = new Watched(caller, root)
      val known = Option(watched.putIfAbsent(at, own)).getOrElse(own)
      if (!lives(at, known.run)) tell(Vector.empty, Vector(own))
      clock
    }

  private def lives(at: String, run: Option[UUID]): Boolean =
    try run.nonEmpty && live.get(at) == run
    catch { case NonFatal(_) | _: LinkageError => false }

  private def live: Map[String, UUID] =
    LiveQueries.checkpoints.map { case (root, run) => key(new Path(root)) -> run }

  private def key(path: Path): String = {
    val uri = path.toUri
    s"${Option(uri.getAuthority).getOrElse("")} ${uri.getPath}"
  }

  private def tick(): Unit =
    try {
      val now = live
      val (alive, silent) = watched.asScala.toVector.partition { case (at, _) => now.contains(at) }
      val replaced = alive.collect { case (at, one) if one.run.exists(_ != now(at)) => one }
      alive.foreach { case (at, one) => one.run = now.get(at) }
      (alive ++ silent).foreach { case (_, one) => one.ticks += 1 }
      val due = alive.collect {
        case (_, one) if one.ticks % TicksPerSign == 0 && !replaced.contains(one) => one
      }
      val over = silent.filter { case (_, one) => one.run.nonEmpty }
      (silent.filter { case (_, one) => one.ticks > IdleTicksMax } ++ over)
        .foreach { case (at, _) => watched.remove(at) }
      tell(due, replaced ++ over.map(_._2))
    } catch { case NonFatal(_) | _: LinkageError => () } // Without Spark's queries there is nothing to keep.

  private def tell(due: Vector[Watched], over: Vector[Watched]): Unit =
    (due ++ over).map(_.caller).distinct.foreach { caller =>
      val meta = Messages.meta()
      val (roots, ended) = (meta.putArray("roots"), meta.putArray("over"))
      due.filter(_.caller eq caller).foreach(one => roots.add(one.root))
      over.filter(_.caller eq caller).foreach(one => ended.add(one.root))
      try caller.mutate(Kind.KeepLeases, meta, "keep leases")
      catch { case _: IOException => () } // The next sign may get through.
    }
}
