package io.diskless.spark

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.{ForeachWriter, Row}

/** A sink of Real-Time Mode, which has rows one by one: each with the time when it came. */
class Arrivals(name: String) extends ForeachWriter[Row] {
  override def open(partition: Long, epoch: Long): Boolean = true

  override def process(row: Row): Unit =
    Arrivals.of(name).add(s"${System.currentTimeMillis},${row.mkString(",")}")

  override def close(error: Throwable): Unit = ()
}

/** Tests and tasks are in one JVM. */
object Arrivals {
  private val all = new ConcurrentHashMap[String, ConcurrentLinkedQueue[String]]

  private def of(name: String) = all.computeIfAbsent(name, _ => new ConcurrentLinkedQueue[String])

  /** A line for each row so far: its time, and its columns. */
  def told(name: String): String = of(name).asScala.mkString("\n")
}
