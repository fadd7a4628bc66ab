package io.diskless.spark

import java.lang.invoke.MethodHandles
import java.nio.ByteOrder

/** XXH3-64 of bytes that arrive piece by piece: the checksum of whole files.
  *
  * The published algorithm (xxhash 0.8, seed 0, default secret), because no jar of Spark has
  * it for streams. Up to 240 bytes are kept and hashed at the end, by one of three short
  * forms; of longer input only the last stripe and what does not fill one are kept.
  */
private[spark] final class Xxh3 {
  import Xxh3._

  private val acc = Array(Prime32_3, Prime64_1, Prime64_2, Prime64_3, Prime64_4, Prime32_2,
    Prime64_5, Prime32_1)
  private val buffer = new Array[Byte](BufferBytes)
  private var buffered = 0
  private var stripesInBlock = 0
  private var total = 0L

  def update(data: Array[Byte], start: Int, count: Int): Unit = {
    total += count
    if (buffered + count <= BufferBytes) {
      System.arraycopy(data, start, buffer, buffered, count)
      buffered += count
      return
    }
    var at = start
    val end = start + count
    if (buffered > 0) {
      val fill = BufferBytes - buffered
      System.arraycopy(data, at, buffer, buffered, fill)
      at += fill
      stripesInBlock =
        accumulateAll(acc, buffer, 0, BufferBytes / StripeBytes, stripesInBlock)
      buffered = 0
    }
    // At least one byte stays behind: the last stripe is treated differently.
    if (end - at > BufferBytes) {
      val stripes = (end - at - 1) / BufferBytes * (BufferBytes / StripeBytes)
      stripesInBlock = accumulateAll(acc, data, at, stripes, stripesInBlock)
      at += stripes * StripeBytes
      // The last stripe may reach back into what was consumed.
      System.arraycopy(data, at - StripeBytes, buffer, BufferBytes - StripeBytes, StripeBytes)
    }
    System.arraycopy(data, at, buffer, 0, end - at)
    buffered = end - at
  }

  /** Of what came so far; more may follow. */
  def value(): Long =
    if (total <= ShortBytesMax) hashShort(buffer, total.toInt)
    else {
      val sums = acc.clone()
      val last = new Array[Byte](StripeBytes)
      if (buffered >= StripeBytes) {
        accumulateAll(sums, buffer, 0, (buffered - 1) / StripeBytes, stripesInBlock)
        System.arraycopy(buffer, buffered - StripeBytes, last, 0, StripeBytes)
      } else {
        val before = StripeBytes - buffered
        System.arraycopy(buffer, BufferBytes - before, last, 0, before)
        System.arraycopy(buffer, 0, last, before, buffered)
      }
      accumulate(sums, last, 0, 1, SecretBytes - StripeBytes - 7)
      mergeAccumulators(sums, 11, total * Prime64_1)
    }
}

private[spark] object Xxh3 {
  private val StripeBytes = 64
  private val BufferBytes = 256
  private val ShortBytesMax = 240
  private val SecretBytes = 192
  private val StripesPerBlock = (SecretBytes - StripeBytes) / 8

  private val Prime32_1 = 0x9E3779B1L
  private val Prime32_2 = 0x85EBCA77L
  private val Prime32_3 = 0xC2B2AE3DL
  private val Prime64_1 = 0x9E3779B185EBCA87L
  private val Prime64_2 = 0xC2B2AE3D27D4EB4FL
  private val Prime64_3 = 0x165667B19E3779F9L
  private val Prime64_4 = 0x85EBCA77C2B2AE63L
  private val Prime64_5 = 0x27D4EB2F165667C5L
  private val PrimeMx1 = 0x165667919E3779F9L
  private val PrimeMx2 = 0x9FB21C651E98DF25L

  private val Secret: Array[Byte] = (
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f" +
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c" +
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364" +
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e" +
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
    .grouped(2).map(Integer.parseInt(_, 16).toByte).toArray

  private val longs = MethodHandles.byteArrayViewVarHandle(
    classOf[Array[Long]], ByteOrder.LITTLE_ENDIAN)
  private val ints = MethodHandles.byteArrayViewVarHandle(
    classOf[Array[Int]], ByteOrder.LITTLE_ENDIAN)

  private def long(data: Array[Byte], at: Int): Long = longs.get(data, at): Long

  private def int(data: Array[Byte], at: Int): Long = (ints.get(data, at): Int) & 0xFFFFFFFFL

  def of(data: Array[Byte], start: Int, count: Int): Long = {
    val hash = new Xxh3
    hash.update(data, start, count)
    hash.value()
  }

  /** Takes whole stripes in; gives how many are in the block under way then. */
  private def accumulateAll(
      acc: Array[Long], data: Array[Byte], start: Int, stripes: Int, inBlock: Int): Int = {
    var at = start
    var left = stripes
    var filled = inBlock
    while (left > 0) {
      val count = math.min(left, StripesPerBlock - filled)
      accumulate(acc, data, at, count, filled * 8)
      at += count * StripeBytes
      left -= count
      filled += count
      if (filled == StripesPerBlock) {
        scramble(acc)
        filled = 0
      }
    }
    filled
  }

  /** Stripes of one block. The sums are local variables, two and two, because this is several
    * times as fast as the plain loop over `acc(i)` and `acc(i ^ 1)`, and because Java 17 (C2 of
    * 17.0.15) compiles that loop wrongly: it begins to give other sums when it gets hot.
    */
  private def accumulate(
      acc: Array[Long], data: Array[Byte], start: Int, stripes: Int, secretStart: Int): Unit = {
    var a0 = acc(0)
    var a1 = acc(1)
    var a2 = acc(2)
    var a3 = acc(3)
    var a4 = acc(4)
    var a5 = acc(5)
    var a6 = acc(6)
    var a7 = acc(7)
    var at = start
    var key = secretStart
    val end = start + stripes * StripeBytes
    while (at < end) {
      val d0 = long(data, at)
      val d1 = long(data, at + 8)
      a0 += d1 + halves(d0 ^ long(Secret, key))
      a1 += d0 + halves(d1 ^ long(Secret, key + 8))
      val d2 = long(data, at + 16)
      val d3 = long(data, at + 24)
      a2 += d3 + halves(d2 ^ long(Secret, key + 16))
      a3 += d2 + halves(d3 ^ long(Secret, key + 24))
      val d4 = long(data, at + 32)
      val d5 = long(data, at + 40)
      a4 += d5 + halves(d4 ^ long(Secret, key + 32))
      a5 += d4 + halves(d5 ^ long(Secret, key + 40))
      val d6 = long(data, at + 48)
      val d7 = long(data, at + 56)
      a6 += d7 + halves(d6 ^ long(Secret, key + 48))
      a7 += d6 + halves(d7 ^ long(Secret, key + 56))
      at += StripeBytes
      key += 8
    }
    acc(0) = a0
    acc(1) = a1
    acc(2) = a2
    acc(3) = a3
    acc(4) = a4
    acc(5) = a5
    acc(6) = a6
    acc(7) = a7
  }

  private def halves(key: Long): Long = (key & 0xFFFFFFFFL) * (key >>> 32)

  /** Line by line for the same reason: as a loop C2 of Java 17.0.15 compiles it wrongly too. */
  private def scramble(acc: Array[Long]): Unit = {
    acc(0) = scrambled(acc(0), 0)
    acc(1) = scrambled(acc(1), 8)
    acc(2) = scrambled(acc(2), 16)
    acc(3) = scrambled(acc(3), 24)
    acc(4) = scrambled(acc(4), 32)
    acc(5) = scrambled(acc(5), 40)
    acc(6) = scrambled(acc(6), 48)
    acc(7) = scrambled(acc(7), 56)
  }

  private def scrambled(sum: Long, secretAt: Int): Long =
    (sum ^ (sum >>> 47) ^ long(Secret, SecretBytes - StripeBytes + secretAt)) * Prime32_1

  private def mergeAccumulators(acc: Array[Long], secretAt: Int, start: Long): Long = {
    var result = start
    var i = 0
    while (i < 4) {
      val at = secretAt + 16 * i
      result += fold(acc(2 * i) ^ long(Secret, at), acc(2 * i + 1) ^ long(Secret, at + 8))
      i += 1
    }
    avalanche(result)
  }

  private def hashShort(data: Array[Byte], size: Int): Long =
    if (size > 128) hash129to240(data, size)
    else if (size > 16) hash17to128(data, size)
    else if (size > 8) hash9to16(data, size)
    else if (size >= 4) hash4to8(data, size)
    else if (size > 0) hash1to3(data, size)
    else avalancheXxh64(long(Secret, 56) ^ long(Secret, 64))

  private def hash1to3(data: Array[Byte], size: Int): Long = {
    val first = data(0) & 0xFFL
    val middle = data(size >> 1) & 0xFFL
    val last = data(size - 1) & 0xFFL
    val combined = (first << 16) | (middle << 24) | last | (size.toLong << 8)
    avalancheXxh64(combined ^ (int(Secret, 0) ^ int(Secret, 4)))
  }

  private def hash4to8(data: Array[Byte], size: Int): Long = {
    val combined = int(data, size - 4) + (int(data, 0) << 32)
    var h = combined ^ (long(Secret, 8) ^ long(Secret, 16))
    h ^= java.lang.Long.rotateLeft(h, 49) ^ java.lang.Long.rotateLeft(h, 24)
    h *= PrimeMx2
    h ^= (h >>> 35) + size
    h *= PrimeMx2
    h ^ (h >>> 28)
  }

  private def hash9to16(data: Array[Byte], size: Int): Long = {
    val low = long(data, 0) ^ (long(Secret, 24) ^ long(Secret, 32))
    val high = long(data, size - 8) ^ (long(Secret, 40) ^ long(Secret, 48))
    avalanche(size + java.lang.Long.reverseBytes(low) + high + fold(low, high))
  }

  private def hash17to128(data: Array[Byte], size: Int): Long = {
    var sum = size * Prime64_1
    var i = (size - 1) / 32
    while (i >= 0) {
      sum += mix16(data, 16 * i, 32 * i)
      sum += mix16(data, size - 16 * (i + 1), 32 * i + 16)
      i -= 1
    }
    avalanche(sum)
  }

  private def hash129to240(data: Array[Byte], size: Int): Long = {
    var sum = size * Prime64_1
    var i = 0
    while (i < 8) {
      sum += mix16(data, 16 * i, 16 * i)
      i += 1
    }
    sum = avalanche(sum)
    while (i < size / 16) {
      sum += mix16(data, 16 * i, 16 * (i - 8) + 3)
      i += 1
    }
    avalanche(sum + mix16(data, size - 16, 136 - 17))
  }

  private def mix16(data: Array[Byte], at: Int, secretAt: Int): Long =
    fold(long(data, at) ^ long(Secret, secretAt), long(data, at + 8) ^ long(Secret, secretAt + 8))

  private def fold(a: Long, b: Long): Long = (a * b) ^ multiplyHigh(a, b)

  /** Unsigned; Java 17 has only the signed one. */
  private def multiplyHigh(a: Long, b: Long): Long =
    Math.multiplyHigh(a, b) + ((a >> 63) & b) + ((b >> 63) & a)

  private def avalanche(value: Long): Long = {
    val h = (value ^ (value >>> 37)) * PrimeMx1
    h ^ (h >>> 32)
  }

  private def avalancheXxh64(value: Long): Long = {
    var h = (value ^ (value >>> 33)) * Prime64_2
    h = (h ^ (h >>> 29)) * Prime64_3
    h ^ (h >>> 32)
  }
}
