package io.diskless.spark

import java.io.{EOFException, FileNotFoundException, IOException}
import java.nio.ByteBuffer
import java.util.{Arrays, Collections, List => JList}
import java.util.concurrent.TimeUnit

import scala.util.Random

import org.apache.hadoop.fs.{FileRange, FSDataInputStream, StreamCapabilities}

/** Hadoop's contract for opening, seeking, positioned and vectored reads. */
class ReadSuite extends Suite {
  private val mib = 1 << 20

  test("opening a missing path or a directory fails") { env =>
    Check.throws[FileNotFoundException](env.fs.open(env.path("no")))
    env.fs.mkdirs(env.path("d"))
    Check.throws[FileNotFoundException](env.fs.open(env.path("d")))
  }

  test("an empty file is at its end") { env =>
    env.write(env.path("f"), Array.emptyByteArray)
    val in = env.fs.open(env.path("f"))
    Check.equal(in.read(), -1)
    Check.equal(in.read(new Array[Byte](8)), -1)
    Check.equal(in.read(0, new Array[Byte](8), 0, 8), -1)
    in.seek(0)
    Check.throws[EOFException](in.seek(1))
    in.close()
  }

  test("a closed stream refuses everything and closes again") { env =>
    env.write(env.path("f"), Bytes.random(10))
    val in = env.fs.open(env.path("f"))
    in.close()
    in.close()
    Check.throws[IOException](in.read())
    Check.throws[IOException](in.seek(0))
    Check.throws[IOException](in.read(0, new Array[Byte](1), 0, 1))
    Check.throws[IOException](in.available())
  }

  test("seeking goes to any place of the file and to no other") { env =>
    withFile(env, 3 * mib + 1000) { (in, data) =>
      val random = new Random(1)
      for (_ <- 0 until 200) {
        val at = random.nextInt(data.length)
        in.seek(at)
        Check.equal(in.getPos, at.toLong)
        Check.equal(in.read(), data(at) & 0xFF)
        Check.equal(in.getPos, at + 1L)
      }
      in.seek(data.length)
      Check.equal(in.read(), -1)
      Check.throws[EOFException](in.seek(-1))
      Check.throws[EOFException](in.seek(data.length + 1L))
      Check.equal(in.getPos, data.length.toLong)
    }
  }

  test("skip and available know where the end is") { env =>
    withFile(env, 1000) { (in, data) =>
      Check.equal(in.available(), 1000)
      Check.equal(in.skip(900), 900L)
      Check.equal(in.available(), 100)
      Check.equal(in.read(), data(900) & 0xFF)
      Check.equal(in.skip(500), 99L)
      Check.equal(in.available(), 0)
      Check.equal(in.skip(-5), 0L)
    }
  }

  test("positioned reads leave the position alone") { env =>
    withFile(env, 2 * mib + 77) { (in, data) =>
      in.seek(5)
      val random = new Random(2)
      for (_ <- 0 until 100) {
        val at = random.nextInt(data.length)
        val count = random.nextInt(data.length - at) + 1
        val target = new Array[Byte](count)
        in.readFully(at, target)
        Check.equal(target, Arrays.copyOfRange(data, at, at + count))
      }
      Check.equal(in.getPos, 5L)
      Check.equal(in.read(), data(5) & 0xFF)
    }
  }

  test("positioned reads at and beyond the end") { env =>
    withFile(env, 1000) { (in, data) =>
      val target = new Array[Byte](100)
      Check.equal(in.read(950, target, 0, 100), 50)
      Check.equal(in.read(1000, target, 0, 100), -1)
      Check.equal(in.read(5000, target, 0, 100), -1)
      Check.equal(in.read(1000, target, 0, 0), 0)
      Check.throws[EOFException](in.readFully(950, target))
      Check.throws[EOFException](in.read(-1, target, 0, 1))
      Check.throws[IllegalArgumentException](in.read(0, target, 0, -1))
      Check.throws[IndexOutOfBoundsException](in.read(0, target, 50, 51))
    }
  }

  test("reading in order is the same for any buffer size") { env =>
    val data = Bytes.random(6 * mib + 12345)
    env.write(env.path("f"), data)
    for (size <- Seq(1000, 8192, 100000, mib, 4 * mib)) {
      val in = env.fs.open(env.path("f"))
      val target = new Array[Byte](data.length)
      var at = 0
      var count = in.read(target, at, math.min(size, data.length - at))
      while (count > 0) {
        at += count
        count = in.read(target, at, math.min(size, data.length - at))
      }
      in.close()
      Check.equal(at, data.length)
      Check.equal(target, data)
    }
  }

  test("reading goes on after the file is deleted or replaced") { env =>
    val data = Bytes.random(5 * mib)
    for (change <- Seq(
        () => env.fs.delete(env.path("f"), false): Unit,
        () => env.write(env.path("f"), Bytes.random(3, 9), overwrite = true))) {
      env.write(env.path("f"), data, overwrite = true)
      val in = env.fs.open(env.path("f"))
      val target = new Array[Byte](data.length)
      in.readFully(target, 0, 1000)
      change()
      in.readFully(target, 1000, data.length - 1000)
      in.close()
      Check.equal(target, data)
    }
  }

  test("several threads read one stream at positions") { env =>
    withFile(env, 4 * mib) { (in, data) =>
      Threads.together((0 until 4).map { n => () =>
        val random = new Random(n)
        for (_ <- 0 until 30) {
          val at = random.nextInt(data.length - 70000)
          val target = new Array[Byte](70000)
          in.readFully(at, target)
          Check.equal(target, Arrays.copyOfRange(data, at, at + 70000))
        }
      })
    }
  }

  test("a vectored read gives every range, in small files and large") { env =>
    for (size <- Seq(5000, 200000, 5 * mib)) withFile(env, size) { (in, data) =>
      Check.that(in.hasCapability(StreamCapabilities.VECTOREDIO))
      val ranges = Seq(
        (0L, 100), (200L, 300), (size / 2L, 1000), (size - 1000L, 1000), (1000L, size / 4 - 1000))
      for (allocate <- Seq[Int => ByteBuffer](ByteBuffer.allocate, ByteBuffer.allocateDirect)) {
        checkVectored(in, data, ranges, allocate)
      }
      checkVectored(in, data, Seq((0L, size)), ByteBuffer.allocate)
      Check.equal(in.read(), data(0) & 0xFF)
    }
  }

  test("a vectored read refuses what makes no sense") { env =>
    withFile(env, 1000) { (in, _) =>
      def read(ranges: FileRange*): Unit =
        in.readVectored(Arrays.asList(ranges: _*), ByteBuffer.allocate _)
      Check.throws[EOFException](read(FileRange.createFileRange(900, 101)))
      Check.throws[EOFException](read(FileRange.createFileRange(2000, 1)))
      Check.throws[EOFException](read(FileRange.createFileRange(-1, 50)))
      Check.throws[IllegalArgumentException](read(FileRange.createFileRange(0, -50)))
      Check.throws[IllegalArgumentException](
        read(FileRange.createFileRange(0, 100), FileRange.createFileRange(50, 100)))
      Check.throws[IllegalArgumentException](
        read(FileRange.createFileRange(0, 100), FileRange.createFileRange(0, 100)))
      Check.throws[NullPointerException](
        in.readVectored(null: JList[FileRange], ByteBuffer.allocate _))
      in.readVectored(Collections.emptyList[FileRange](), ByteBuffer.allocate _)
    }
  }

  test("hosts have the names that executors have") { _ =>
    val box = "box/10.0.0.7"
    Check.equal(HostNames.of(box, Set("10.0.0.7", "10.0.0.70")), Vector("10.0.0.7"))
    Check.equal(HostNames.of(box, Set("box", "box2")), Vector("box"))
    Check.equal(HostNames.of(box, Set("Box.example.org")), Vector("Box.example.org"))
    Check.equal(HostNames.of("box.example.org/10.0.0.7", Set("box")), Vector("box"))
    Check.equal(HostNames.of("box.example.org/x", Set("box.other.org")).head, "box.example.org")
    Check.equal(HostNames.of("box/fd00::7", Set("[fd00::7]")), Vector("[fd00::7]"))
    Check.equal(HostNames.of("10/10.0.0.7", Set("10.0.0.8")), Vector("10", "10.0.0.7"))
    Check.equal(HostNames.of(box, Set("other")), Vector("box", "10.0.0.7"))
    Check.equal(HostNames.of("box", Set.empty), Vector("box"))
    Check.equal(HostNames.of("box/", Set.empty), Vector("box"))
  }

  test("the host with a copy of the whole file comes first, and the others by their bytes") { env =>
    def placed(hosts: String*) = Store.Placed(0, 10, hosts.toVector)
    val held = Vector(placed("a", "b"), placed("b", "c"), placed("b", "c"), placed("c", "d"))
    val layout = new Layout(env.fs.getUri, null)
    def nearest(near: Option[String], executors: String*) =
      layout.nearest(near, held, executors.toSet)
    Check.equal(nearest(None), Vector("b", "c", "a"))
    Check.equal(nearest(Some("d")), Vector("d", "b", "c"))
    Check.equal(nearest(Some("c")), Vector("c", "b", "a"))
    Check.equal(nearest(Some("b"), "a", "d", "x"), Vector("a", "d")) // Others would take their places.
    Check.equal(nearest(Some("b"), "x"), Vector("b", "c", "a"))
  }

  test("block locations name hosts of the cluster") { env =>
    val executors = org.apache.spark.sql.diskless.LiveExecutors.hosts
    Check.that(executors.nonEmpty)
    for (size <- Seq(10, 3 * mib)) {
      env.write(env.path(s"f$size"), Bytes.random(size))
      val status = env.fs.getFileStatus(env.path(s"f$size"))
      val blocks = env.fs.getFileBlockLocations(status, 0, size)
      Check.equal(blocks.length, 1)
      Check.equal((blocks(0).getOffset, blocks(0).getLength), (0L, size.toLong))
      Check.that(blocks(0).getHosts.nonEmpty && blocks(0).getHosts.forall(executors))
      Check.equal(env.fs.getFileBlockLocations(status, size, 1).length, 0)
      Check.throws[IllegalArgumentException](env.fs.getFileBlockLocations(status, -1, 1))
    }
  }

  private def withFile(env: Env, size: Int)(
      body: (FSDataInputStream, Array[Byte]) => Unit): Unit = {
    val data = Bytes.random(size)
    env.write(env.path("f"), data, overwrite = true)
    val in = env.fs.open(env.path("f"))
    try body(in, data)
    finally in.close()
  }

  private def checkVectored(
      in: FSDataInputStream, data: Array[Byte], wanted: Seq[(Long, Int)],
      allocate: Int => ByteBuffer): Unit = {
    val ranges = wanted.map { case (at, count) => FileRange.createFileRange(at, count) }
    in.readVectored(Arrays.asList(ranges: _*), (size: Int) => allocate(size))
    for (range <- ranges) {
      val buffer = range.getData.get(60, TimeUnit.SECONDS)
      val found = new Array[Byte](buffer.remaining)
      buffer.get(found)
      val from = range.getOffset.toInt
      Check.equal(found, Arrays.copyOfRange(data, from, from + range.getLength))
    }
  }
}
