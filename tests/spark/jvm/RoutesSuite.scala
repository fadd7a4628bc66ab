package io.diskless.spark

/** Whom a JVM asks, going by what agents tell of each other. */
class RoutesSuite extends Suite {
  private def peers(json: String): Seq[Peer] = Messages.peers(Messages.decode(json.getBytes))

  test("a slow agent is asked last of those that are up, but leads if it does") { _ =>
    val told = peers(
      """[{"slot": 0, "gateway": "h:0", "socket": "", "host": "h", "up": true, "slow": true},
          {"slot": 1, "gateway": "h:1", "socket": "", "host": "h", "up": false},
          {"slot": 2, "gateway": "h:2", "socket": "", "host": "h", "up": true}]""")
    for (salt <- 0 until 20) {
      val routes = new Routes(told, salt.toString)
      Check.equal(routes.peers.map(_.slot), Seq(2, 0, 1))
      routes.learn(leader = 0, version = 1)
      Check.equal(routes.pick(bulk = true).slot, 2)
      Check.equal(routes.pick(bulk = false).slot, 0)
    }
  }

  test("agents that were silent are not asked again before the others were") { _ =>
    val told = peers((0 until 3).map(slot =>
      s"""{"slot": $slot, "gateway": "h:$slot", "socket": "", "host": "h", "up": true}""")
      .mkString("[", ",", "]"))
    val routes = new Routes(told, "salt")
    val asked = for (_ <- 0 until 3) yield {
      val peer = routes.pick(bulk = false)
      routes.failed(peer)
      peer.slot
    }
    Check.equal(asked.toSet, Set(0, 1, 2))
    val answers = routes.peers.last
    routes.worked(answers, System.nanoTime())
    for (_ <- 0 until 3) Check.equal(routes.pick(bulk = false), answers)
  }

  test("an answer from before a failure does not undo it") { _ =>
    val told = peers("""[{"slot": 0, "gateway": "h:0", "socket": "", "host": "h", "up": true},
      {"slot": 1, "gateway": "h:1", "socket": "", "host": "h", "up": true}]""")
    var now = 1000L
    val routes = new Routes(told, "salt", () => now)
    val (first, second) = (routes.peers.head, routes.peers.last)
    routes.failed(first)
    routes.worked(first, heardAt = now - 1)
    Check.equal(routes.pick(bulk = true), second)
    now += 1
    routes.worked(first, heardAt = now)
    Check.equal(routes.pick(bulk = true), first)
  }
}
