package org.apache.spark.sql.diskless

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.spark.SparkContext

/** The executors of this driver. In Spark's own package: only there an application without a
  * session can be seen. */
object LiveExecutors {
  /** What they are registered by: names, or addresses. None in an executor, and of an application
    * that is just being stopped.
    */
  def hosts: Set[String] = Try {
    SparkContext.getActive.toSeq.flatMap(_.statusTracker.getExecutorInfos.map(_.host)).toSet
  }.getOrElse(Set.empty)

  /** How many tasks they can run at once; none if that is not known, or Spark tells it otherwise
    * than it did. */
  def tasksAtOnce: Option[Int] =
    try {
      SparkContext.getActive
        .map(context =>
          context.maxNumConcurrentTasks(context.resourceProfileManager.defaultResourceProfile))
        .filter(_ > 0)
    } catch {
      case NonFatal(_) | _: LinkageError => None
    }
}
