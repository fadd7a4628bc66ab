package org.apache.spark.sql.diskless

import java.util.UUID

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.classic.SparkSession

/** The streaming queries that run in this driver. In Spark's own package: only there can the
  * queries of all sessions be seen. */
object LiveQueries {
  /** Their checkpoint locations, and which run of the query it is; none in an executor. */
  def checkpoints: Map[String, UUID] = SparkSession.getDefaultSession.toSeq.flatMap { session =>
    session.sharedState.activeStreamingQueries.values.asScala
      .map(query => query.resolvedCheckpointRoot -> query.runId)
  }.toMap

  /** The checkpoint location of one, and how its session finds file systems. */
  def find(id: UUID): Option[(String, Configuration)] =
    SparkSession.getDefaultSession.flatMap { session =>
      Option(session.sharedState.activeStreamingQueries.get(id)).map { query =>
        (query.resolvedCheckpointRoot, query.sparkSession.sessionState.newHadoopConf())
      }
    }
}
