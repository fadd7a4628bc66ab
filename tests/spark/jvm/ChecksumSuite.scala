package io.diskless.spark

/** Beside test_contract.py, which compares with xxhash. */
class ChecksumSuite extends Suite {
  test("a checksum is the same in interpreted and in compiled code") { _ =>
    for (size <- Seq(3, 7, 12, 100, 200, 300, 1500, 70000)) {
      val data = Bytes.random(size)
      val cold = Xxh3.of(data, 0, size)
      val rounds = if (size > 10000) 3000 else 30000
      for (round <- 0 until rounds) {
        Check.that(Xxh3.of(data, 0, size) == cold, s"$size bytes, round $round")
      }
    }
  }
}
