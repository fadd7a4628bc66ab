package io.diskless.spark

import net.jpountz.xxhash.XXHashFactory

/** XXH64 of a file whose bytes arrive in order, as agents and the Python client compute it.
  *
  * lz4-java comes with Spark; it takes its native code where that loads, and Java elsewhere.
  */
private[spark] final class Checksum {
  private val hash = Checksum.factory.newStreamingHash64(0L)

  def update(bytes: Array[Byte], offset: Int, count: Int): Unit =
    hash.update(bytes, offset, count)

  /** As 16 hexadecimal digits. */
  def value(): String = f"${hash.getValue}%016x"
}

private object Checksum {
  private lazy val factory = XXHashFactory.fastestInstance()
}
