package io.diskless.spark

import java.time.Instant
import java.util.UUID
import java.util.concurrent.{ArrayBlockingQueue, ConcurrentHashMap, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.sql.diskless.{LiveExecutors, LiveQueries}
import org.apache.spark.sql.streaming.{StreamingQueryListener, StreamingQueryProgress}
import org.apache.spark.sql.streaming.StreamingQueryListener._
import org.slf4j.LoggerFactory

/** Tells the cluster of each batch of the queries whose checkpoints it has.
  *
  * Spark makes one for each session (`spark.sql.streaming.streamingQueryListeners`). It takes down
  * a few numbers on the thread of Spark's that calls it, and a thread of its own sends them: no
  * query waits for that, and none fails for it. What cannot be sent is dropped.
  */
class DisklessQueryListener extends StreamingQueryListener {
  override def onQueryStarted(event: QueryStartedEvent): Unit =
    quietly(Notes.began(event.id, event.runId))

  override def onQueryProgress(event: QueryProgressEvent): Unit =
    quietly(Notes.progressed(event.progress))

  override def onQueryTerminated(event: QueryTerminatedEvent): Unit =
    quietly(Notes.ended(event.runId))

  /** Also where Spark's own classes are not those that this was compiled with: its bus would stop
    * the application for that. */
  private def quietly(work: => Unit): Unit =
    try work catch { case NonFatal(_) | _: LinkageError => () }
}

/** What the listeners of this driver have to say, until it is sent. */
private[spark] object Notes {
  private val log = LoggerFactory.getLogger(classOf[DisklessQueryListener])

  /** Notes that wait at most; more are dropped. */
  val WaitingMax = 1000
  /** Of one message: agents take no more. */
  private val PerMessageMax = 100
  private val SendNanos = TimeUnit.SECONDS.toNanos(5)
  /** After a message; what comes meanwhile goes together, so that small batches cost agents less. */
  private val PauseMillis = 300L

  /** A query whose checkpoint is here. Who may not tell of it does not try again. */
  final class Told(val root: Path, find: => (Caller, String)) {
    @volatile var refused = false
    /** When this run of it was first heard of, which is when it began. */
    val startedMillis: Long = System.currentTimeMillis()
    /** Found when it is first needed, by the thread that sends. */
    lazy val target: (Caller, String) = find
  }

  def told(root: Path, conf: Configuration): Told = new Told(root,
    FileSystem.get(root.toUri, conf).asInstanceOf[DisklessFileSystem].reach(root))

  private final class Note(val told: Told, val query: UUID, val meta: ObjectNode)

  /** By run: one that begins is told of at once, the end of the one before it later. None is of
    * those whose checkpoints are elsewhere. */
  private val runs = new ConcurrentHashMap[UUID, Option[Told]]
  private val waiting = new ArrayBlockingQueue[Note](WaitingMax)
  val sent = new AtomicLong
  val dropped = new AtomicLong

  private lazy val sender: Thread = {
    val thread = new Thread(() => send(), "diskless-notes")
    thread.setDaemon(true)
    thread.start()
    thread
  }

  def began(id: UUID, run: UUID): Option[Told] = runs.computeIfAbsent(run, _ =>
    LiveQueries.find(id).map { case (root, conf) =>
      val at = new Path(root)
      val scheme =
        Option(at.toUri.getScheme).getOrElse(FileSystem.getDefaultUri(conf).getScheme)
      if (scheme == Descriptor.Scheme) Some(told(at, conf)) else None
    }.orNull) // Of one that is not known, nothing is kept: it has ended.

  def ended(run: UUID): Unit = runs.remove(run)

  def progressed(progress: StreamingQueryProgress): Unit =
    Option(began(progress.id, progress.runId)).flatten.filterNot(_.refused)
      .foreach(told => offer(told, progress.id, describe(told, progress)))

  /** Returns at once, whatever becomes of it. */
  def offer(told: Told, query: UUID, note: ObjectNode): Unit = {
    if (!waiting.offer(new Note(told, query, note))) dropped.incrementAndGet()
    sender
  }

  private def describe(told: Told, progress: StreamingQueryProgress): ObjectNode = {
    val note = Messages.meta()
    // Agents close a connection, which queries share, on which a number is less than nothing.
    def put(field: String, number: Long): Unit = note.put(field, math.max(number, 0L))
    put("batch", progress.batchId)
    put("time_ms", Instant.parse(progress.timestamp).toEpochMilli)
    put("rows", progress.numInputRows)
    put("started_ms", told.startedMillis)
    for ((name, field) <- Durations; took <- Option(progress.durationMs.get(name))) {
      put(field, took)
    }
    val operators = progress.stateOperators
    if (operators.nonEmpty) {
      put("state_commit_ms", operators.map(_.commitTimeMs).sum)
      put("state_rows", operators.map(_.numRowsTotal).sum)
      put("state_updated", operators.map(_.numRowsUpdated).sum)
      put("state_bytes", operators.map(_.memoryUsedBytes).sum)
      val partitions = operators.map(_.numShufflePartitions).max
      if (partitions > 0) {
        LiveExecutors.tasksAtOnce.foreach(tasks => put("tasks", math.min(tasks, partitions)))
      }
    }
    note
  }

  /** What Spark calls the steps of a batch, and what we do. */
  private val Durations = Seq(
    "triggerExecution" -> "trigger_ms",
    "latestOffset" -> "latest_offset_ms",
    "getBatch" -> "get_batch_ms",
    "queryPlanning" -> "planning_ms",
    "walCommit" -> "wal_commit_ms",
    "addBatch" -> "add_batch_ms",
    "commitOffsets" -> "commit_offsets_ms")

  private def send(): Unit = while (true) {
    try {
      val found = new java.util.ArrayList[Note]
      found.add(waiting.take())
      waiting.drainTo(found, PerMessageMax - 1)
      found.asScala.groupBy(_.told).foreach { case (told, notes) => tell(told, notes.toSeq) }
      Thread.sleep(PauseMillis)
    } catch {
      case error @ (NonFatal(_) | _: LinkageError) => log.debug("notes not sent", error)
    }
  }

  private def tell(told: Told, notes: Seq[Note]): Unit = if (!told.refused) {
    try {
      val (caller, path) = told.target
      val meta = Messages.path(path).put("query", notes.head.query.toString)
      val array = meta.putArray("notes")
      notes.foreach(note => array.add(note.meta))
      caller.call(Kind.NoteBatches, meta, s"note batches of $path", SendNanos)
      sent.addAndGet(notes.size)
    } catch {
      case NonFatal(error) =>
        dropped.addAndGet(notes.size)
        error match {
          case refusal: DisklessException if !refusal.retryable && Final(refusal.reason) =>
            told.refused = true
            log.info(s"batches of ${told.root} are not recorded: ${refusal.getMessage}")
          case _ => log.debug(s"batches of ${told.root} not recorded", error)
        }
    }
  }

  /** Refusals that the next note would get too. */
  private val Final =
    Set(Errors.Unauthorized, Errors.Forbidden, Errors.ReadOnly, "BadFrame", "BadRequest")
}
