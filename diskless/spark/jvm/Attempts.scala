package io.diskless.spark

import java.util.concurrent.{
  CompletableFuture, ExecutionException, Semaphore, ThreadLocalRandom, TimeoutException, TimeUnit}

/** A moment by which to be done. Every wait of a task thread goes through one.
  *
  * An interrupted wait throws InterruptedIOException and nothing else.
  */
private[spark] final class Deadline(what: String, val nanos: Long) {
  def left: Long = math.max(nanos - System.nanoTime(), 0L)

  def sooner(limitNanos: Long): Deadline =
    new Deadline(what, math.min(nanos, System.nanoTime() + limitNanos))

  def acquire(permits: Semaphore): Boolean =
    interruptibly(permits.tryAcquire(left, TimeUnit.NANOSECONDS))

  def pause(nanos: Long): Unit = interruptibly(TimeUnit.NANOSECONDS.sleep(nanos))

  /** None if it is not there in time. Throws what the future failed with. */
  def await[T](future: CompletableFuture[T]): Option[T] =
    try Some(interruptibly(future.get(left, TimeUnit.NANOSECONDS)))
    catch {
      case _: TimeoutException => None
      case error: ExecutionException => throw Deadline.unwrap(error)
    }

  private def interruptibly[T](wait: => T): T =
    try wait
    catch { case error: InterruptedException => throw Errors.interrupted(what, error) }
}

private[spark] object Deadline {
  /** The same error, thrown where it was waited for, so that its trace tells who asked. */
  private def unwrap(error: ExecutionException): Throwable = error.getCause match {
    case refusal: DisklessException =>
      new DisklessException(refusal.reason, refusal.getMessage, refusal.retryable, refusal)
    case other => other
  }
}

/** How long and how often an operation is tried: one deadline, small growing pauses.
  *
  * An attempt gets only a part of the time, so that one silent agent cannot use it all up.
  * Progress starts the clock again: for a stream the deadline bounds silence, not length. Who asks
  * for fewer attempts is as patient with each agent as others are who have more time.
  */
private[spark] final class Attempts(
    val what: String, timeoutNanos: Long, attemptsMin: Int = Attempts.AttemptsMin) {
  import Attempts._

  private var began = System.nanoTime()
  private var failures = 0
  private var garbled = 0
  private var cause: Option[DisklessException] = None

  /** Of the current attempt. */
  def deadline: Deadline = overall.sooner(timeoutNanos / attemptsMin)

  /** The same as a request tells it, so that an agent that is well says in time why it cannot
    * answer, and is not taken for a silent one.
    */
  def within: Int = Frames.packWithin(deadline.left)

  /** Whether it began no longer than so ago, and there is time for another attempt. */
  def isYoung(nanos: Long): Boolean =
    System.nanoTime() - began < nanos && overall.left > PauseNanosMax

  def overall: Deadline = new Deadline(what, began + timeoutNanos)

  def progressed(): Unit = {
    began = System.nanoTime()
    failures = 0
    garbled = 0
    cause = None
  }

  /** Pauses before the next attempt; throws DeadlineExceeded if there is no time for it, TierBehind
    * if the durable tier was waited for, CheckpointInUse if it was for a lease and the last attempt
    * was refused for it (else it may have happened), and CorruptData if frames do not get through
    * as they were sent.
    */
  def failed(error: DisklessException): Unit = {
    val pause = pauseNanos()
    failures += 1
    val inTime = overall.left > pause
    if (error.reason == Errors.Garbled) {
      garbled += 1
      if (!inTime || garbled >= GarbledMax) {
        throw new DisklessException(Errors.CorruptData,
          s"$what: damaged on its way in $garbled of $failures attempts, look at the network " +
            s"and at this host's memory; last: ${error.getMessage}", retryable = false, error)
      }
    }
    if (Errors.Causes(error.reason)) cause = Some(error)
    val telling = cause.getOrElse(error) // It explains what the others only show.
    if (!inTime) {
      val seconds = (System.nanoTime() - began) / 1e9
      val reason = telling.reason match {
        case Errors.NotDurable => Errors.TierBehind
        case Errors.CheckpointInUse if error.reason == Errors.CheckpointInUse => error.reason
        case _ => Errors.DeadlineExceeded
      }
      throw new DisklessException(reason,
        f"$what: gave up after $seconds%.1f s, $failures attempts; " +
          s"last error: ${telling.reason}: ${telling.getMessage}",
        retryable = false, telling)
    }
    if (pause > 0) overall.pause(pause)
  }

  /** The first failure costs no pause: another agent is most likely well. */
  private def pauseNanos(): Long =
    if (failures == 0) 0L
    else {
      val longest = math.min(PauseNanosMin << math.min(failures - 1, 30), PauseNanosMax)
      (longest * ThreadLocalRandom.current().nextDouble(0.5, 1.0)).toLong
    }
}

private[spark] object Attempts {
  /** Attempts that fit in the time even if all agents are silent. */
  val AttemptsMin = 6
  /** Damaged frames, without progress between them, after which an operation is given up:
    * agents that fail are passed over, so they came by several ways.
    */
  val GarbledMax = 6
  val PauseNanosMin: Long = 10L * 1000 * 1000
  val PauseNanosMax: Long = 250L * 1000 * 1000
}
