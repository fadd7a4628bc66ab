package io.diskless.spark

import java.util.concurrent.atomic.AtomicInteger

import org.apache.hadoop.fs.{FileSystem, Path}

/** A thread that writes small files, reads each back, and stops at the first failure. */
final class Traffic(fs: FileSystem, directory: String) extends Thread {
  private val count = new AtomicInteger
  @volatile private var stopping = false
  @volatile private var failure = ""

  setDaemon(true)

  def done(): Int = count.get

  /** "" or what went wrong. */
  def finish(): String = {
    stopping = true
    join()
    failure
  }

  override def run(): Unit =
    try while (!stopping) {
      val n = count.get
      val path = new Path(directory, n.toString)
      val data = Bytes.random(100 + n * 100, n)
      val out = fs.create(path, false)
      out.write(data)
      out.close()
      val in = fs.open(path)
      Check.equal(in.readAllBytes(), data)
      in.close()
      count.incrementAndGet()
    } catch { case error: Throwable => failure = error.toString }
}
