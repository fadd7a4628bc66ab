package io.diskless.spark

import java.nio.channels.{SelectionKey, Selector}
import java.util.ArrayDeque
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.atomic.AtomicBoolean

import org.slf4j.LoggerFactory

/** The one thread of this JVM that touches channels.
  *
  * The JDK closes a channel as soon as an interrupted thread uses it, and Spark interrupts
  * task threads. So they only hand work to this thread and wait for futures: interrupting
  * one of them disturbs nobody else.
  */
private[spark] final class IoThread private () extends Runnable {
  private val log = LoggerFactory.getLogger(classOf[IoThread])
  private val work = new ConcurrentLinkedQueue[Runnable]
  private val woken = new AtomicBoolean
  private val postponed = new ArrayDeque[Runnable]

  /** Only for what runs on this thread. */
  val selector: Selector = Selector.open()

  /** Runs `task` on this thread, soon. Never blocks. */
  def execute(task: Runnable): Unit = {
    work.add(task)
    if (woken.compareAndSet(false, true)) selector.wakeup()
  }

  /** Runs `task` in a later turn, one such task a turn, after what has become ready by then: for
    * work that would keep others waiting if it continued now. Only for what runs on this thread.
    */
  def again(task: Runnable): Unit = postponed.add(task)

  override def run(): Unit =
    while (true) {
      try turn()
      catch {
        // A bug, or no memory: a waiting caller has a deadline, and the others must continue.
        case error: Throwable => log.error("diskless io failed", error)
      }
    }

  private def turn(): Unit = {
    if (postponed.isEmpty) selector.select() else selector.selectNow()
    woken.set(false)
    val isDue = !postponed.isEmpty
    val ready = selector.selectedKeys.iterator
    while (ready.hasNext) {
      val key = ready.next()
      ready.remove()
      key.attachment.asInstanceOf[IoThread.Handler].ready(key)
    }
    var task = work.poll()
    while (task != null) {
      task.run()
      task = work.poll()
    }
    if (isDue) postponed.poll().run()
  }
}

private[spark] object IoThread {
  /** What a selection key is attached to. It must not throw. */
  trait Handler {
    def ready(key: SelectionKey): Unit
  }

  lazy val shared: IoThread = {
    val io = new IoThread
    val thread = new Thread(io, "diskless-io")
    thread.setDaemon(true)
    thread.setContextClassLoader(null) // It outlives whatever application started it.
    thread.start()
    io
  }
}
