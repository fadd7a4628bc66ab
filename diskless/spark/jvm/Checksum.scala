package io.diskless.spark

import net.jpountz.xxhash.XXHashFactory

/** XXH64 of bytes that arrive in order, as agents and the Python client compute it.
  *
  * lz4-java comes with Spark; it takes its native code where that loads, and Java elsewhere.
  * Start again with `reset` rather than with another one: each has memory outside the heap.
  */
private[spark] final class Checksum {
  private val hash = Checksum.factory.newStreamingHash64(0L)

  def update(bytes: Array[Byte], offset: Int, count: Int): Unit =
    hash.update(bytes, offset, count)

  def reset(): Unit = hash.reset()

  def toLong: Long = hash.getValue

  /** As 16 hexadecimal digits. */
  def value(): String = Checksum.format(toLong)
}

private[spark] object Checksum {
  private lazy val factory = XXHashFactory.fastestInstance()

  def of(bytes: Array[Byte]): String =
    format(factory.hash64().hash(bytes, 0, bytes.length, 0L))

  private def format(value: Long): String = f"$value%016x"
}
