package io.diskless.spark

import java.io.IOException
import java.util.concurrent.{Callable, Executors, Future, TimeUnit}

import scala.collection.mutable
import scala.reflect.ClassTag
import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileContext, FileSystem, Path}
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager

/** Named cases. tests/spark/test_contract.py finds their names in the source, and has each run
  * on its own by `Suites.run`, in a directory of its own.
  */
abstract class Suite {
  private val cases = mutable.LinkedHashMap.empty[String, Env => Unit]

  protected def test(name: String)(body: Env => Unit): Unit = {
    assert(!cases.contains(name), s"two cases are called $name")
    cases(name) = body
  }

  def run(name: String, env: Env): Unit = cases(name)(env)
}

object Suites {
  private lazy val all: Map[String, Suite] = Seq(
    new CreateSuite, new ReadSuite, new RenameSuite, new DirectorySuite, new FileContextSuite,
    new CheckpointSuite, new RaceSuite, new ConnectionSuite, new HandshakeSuite, new TlsSuite,
    new RightsSuite, new RoutesSuite, new SnapshotSuite, new ListenerSuite)
    .map(suite => suite.getClass.getSimpleName -> suite).toMap

  /** Runs one case; throws what it throws. */
  def run(suite: String, name: String, directory: String, conf: Configuration): Unit =
    all(suite).run(name, new Env(new Path(directory), conf))

  /** Writes a checkpoint file by Spark's own manager, which dies before it renames it. */
  def leaveTemporary(directory: String, conf: Configuration): Unit = {
    val base = new Path(directory)
    val manager = new FileContextBasedCheckpointFileManager(base, conf) {
      override def renameTempFile(source: Path, target: Path, overwrite: Boolean): Unit =
        throw new IllegalStateException("dies here")
    }
    val out = manager.createAtomic(new Path(base, "12"), overwriteIfPossible = false)
    out.write(1)
    Check.throws[IllegalStateException](out.close())
  }

  /** The claims that are made of a cluster's key, as they are written. */
  def claims(cluster: String, keyHex: String): String = Credential.client(cluster, keyHex).text

  /** As hexadecimal digits, of bytes that come in pieces of that size. */
  def checksum(data: Array[Byte], pieceBytes: Int): String = {
    val hash = new Checksum
    var at = 0
    while (at < data.length) {
      val count = math.min(pieceBytes, data.length - at)
      hash.update(data, at, count)
      at += count
    }
    hash.value()
  }
}

/** Where a case works, and what all of them need. */
final class Env(val base: Path, val conf: Configuration) {
  val fs: FileSystem = base.getFileSystem(conf)
  lazy val fc: FileContext = FileContext.getFileContext(base.toUri, conf)

  def path(name: String): Path = new Path(base, name)

  def write(path: Path, data: Array[Byte], overwrite: Boolean = false): Unit = {
    val out = fs.create(path, overwrite)
    out.write(data)
    out.close()
  }

  def read(path: Path): Array[Byte] = {
    val in = fs.open(path)
    try in.readAllBytes()
    finally in.close()
  }

  def names(directory: Path): Seq[String] = fs.listStatus(directory).map(_.getPath.getName).toSeq
}

object Check {
  def that(condition: Boolean, message: => String = "it is not so"): Unit =
    if (!condition) throw new AssertionError(message)

  def equal[T](found: T, wanted: T): Unit = that(found == wanted, s"found $found, not $wanted")

  def equal(found: Array[Byte], wanted: Array[Byte]): Unit =
    that(java.util.Arrays.equals(found, wanted),
      s"${found.length} bytes differ from the ${wanted.length} wanted")

  /** Fails unless `body` throws that class, or one below it; gives what it threw. */
  def throws[E <: Throwable](body: => Any)(implicit tag: ClassTag[E]): E = {
    val thrown = try {
      body
      None
    } catch { case error: Throwable => Some(error) }
    thrown match {
      case Some(error: E) => error
      case Some(other) => throw new AssertionError(s"$other, not ${tag.runtimeClass}", other)
      case None => throw new AssertionError(s"nothing was thrown, not ${tag.runtimeClass}")
    }
  }
}

object Bytes {
  /** Bytes that look like no others. */
  def random(size: Int, seed: Int = 0): Array[Byte] = {
    val bytes = new Array[Byte](size)
    new Random(seed * 31L + size).nextBytes(bytes)
    bytes
  }
}

object Threads {
  private val WaitSeconds = 60L

  /** Runs everything at once, each in its thread; the first failure is thrown. */
  def together[T](work: Seq[() => T]): Seq[T] = {
    val pool = Executors.newFixedThreadPool(work.size)
    try {
      val running: Seq[Future[T]] =
        work.map(one => pool.submit(new Callable[T] { override def call(): T = one() }))
      running.map(_.get(WaitSeconds, TimeUnit.SECONDS))
    } finally pool.shutdownNow()
  }

  /** Waits for a condition. */
  def eventually(condition: => Boolean): Unit = {
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WaitSeconds)
    while (!condition) {
      if (System.nanoTime() > deadline) throw new IOException("waited in vain")
      Thread.sleep(5)
    }
  }
}
