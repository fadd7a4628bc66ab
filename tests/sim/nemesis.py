"""Faults: at random times and places, on special occasions, and a few told as stories.

At most k voters are dead or without memory at a time; `World.crash` sees to that.
A story is a schedule that a known bug needs, with its details left to chance.
"""

from collections.abc import Callable, Generator
from random import Random

from diskless.namespace.replication import Status
from diskless.namespace.replication import messages as m
from tests.sim.checker import Violation
from tests.sim.world import Node, World

Step = Generator[float, None, None]
"""Does things, and yields for how long to wait before it goes on."""

ON_SEND = {
    "crash after ack": m.PrepareOk,
    "crash after vote": m.DoViewChange,
    "crash new leader": m.StartView,
}
CRASH_ON_SEND = 0.04
WALL_EVERY_MS = 300
LOOK_AFTER_MS = 300
HANDED_MS_MAX = 100
"""How long a leader may take to hand over, and another to lead: less than anybody is missed."""
DAY_MS = 86_400_000


class Nemesis:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(world.random.getrandbits(32))
        plan = world.plan
        kinds = tuple(kind for fault, kind in ON_SEND.items() if fault in plan.faults)
        if kinds:
            world.on_send.append(lambda node, message: self._on_send(node, message, kinds))
        self.faults = [fault for fault in plan.faults if fault not in ON_SEND]
        if plan.story:
            self._go_on(getattr(self, "_" + plan.story.replace(" ", "_"))())
        elif self.faults:
            self._go_on(self._at_random())
        if plan.liars:
            self._go_on(self._lie())

    def heal(self) -> None:
        """Makes the world whole: from now on nothing fails."""
        world = self.world
        world.healed = True
        world.on_send.clear()
        world.cut.clear()
        world.lags.clear()
        world.leaders_lag = 0.0
        for link in list(world.held):
            world.release(link)
        for node in (*world.nodes, *world.doubles):
            node.paused_until = max(min(node.paused_until, world.now), node.stopped_until)
        self._look_after()
        world.say("healed")

    def _look_after(self) -> None:
        """Starts what has no living process, again and again: one may yet hear that it is
        superseded, by a life that has died."""
        for node in self.world.nodes:
            self.world.restart(node)
        self.world.at(LOOK_AFTER_MS, self._look_after)

    def _go_on(self, steps: Step) -> None:
        if self.world.healed:
            return
        delay = next(steps, None)
        if delay is not None:
            self.world.at(delay, self._go_on, steps)

    # -- random faults -----------------------------------------------------------

    def _at_random(self) -> Step:
        while True:
            yield self.random.expovariate(1 / self.world.plan.every_ms)
            getattr(self, "_do_" + self.random.choice(self.faults).replace(" ", "_"))()

    def _lie(self) -> Step:
        """Wall clocks that jump, by little or by hours, there and back."""
        while True:
            node = self.world.nodes[self.random.choice(self.world.plan.liars)]
            far = self.random.choice((0, 15, 2000, DAY_MS, DAY_MS))
            self.world.set_wall(node, self.random.uniform(-far, far))
            yield self.random.expovariate(1 / WALL_EVERY_MS)

    def _any(self) -> Node:
        return self.random.choice(self.world.nodes)

    def _leader_or_any(self) -> Node:
        return self.world.leader() or self._any()

    def _crash(self, node: Node) -> None:
        world, random = self.world, self.random
        if world.crash(node):
            delay = random.choice((5, 30, 200, 800)) * random.uniform(0.5, 1.5)
            world.at(delay, world.restart, node)
            if random.random() < 0.5:
                for other in world.nodes:
                    if other is not node:
                        world.at(random.uniform(1, 20), world.suspect, other, node.slot)

    def _on_send(self, node: Node, message: m.Message, kinds: tuple[type, ...]) -> None:
        if isinstance(message, kinds) and self.random.random() < CRASH_ON_SEND:
            self._crash(node)

    def _do_crash(self) -> None:
        self._crash(self._any())

    def _do_crash_leader(self) -> None:
        self._crash(self._leader_or_any())

    def _do_crash_recovering(self) -> None:
        for node, replica in self.world.live():
            if replica.status is Status.RECOVERING:
                self._crash(node)
                return
        self._crash(self._any())

    def _do_pause(self) -> None:
        self.world.pause(self._any(), self.random.uniform(20, 1000))

    def _do_pause_leader(self) -> None:
        self.world.pause(self._leader_or_any(), self.random.uniform(20, 1000))

    def _do_stop(self) -> None:
        self.world.stop(self._any(), self.random.uniform(20, 1500))

    def _do_stop_leader(self) -> None:
        self.world.stop(self._leader_or_any(), self.random.uniform(100, 1500))

    def _do_double(self) -> None:
        self._double(self._any())

    def _do_double_recovering(self) -> None:
        for node in self.world.nodes:
            if node.replica is not None and node.replica.status is Status.RECOVERING:
                self._double(node)
                return
        self._double(self._any())

    def _do_crash_double(self) -> None:
        if self.world.doubles:
            self._crash(self.random.choice(self.world.doubles))

    def _double(self, node: Node) -> None:
        """A second life beside the first, each cut off from some of the others."""
        heir = self.world.replace(node)
        if heir is not None:
            for process in (node, heir):
                slots = [slot for slot in range(self.world.plan.voters) if slot != node.slot]
                apart = self.random.sample(slots, self.random.randint(0, len(slots)))
                links = [(process.name, slot) for slot in apart]
                links += [(slot, process.name) for slot in apart]
                self._sever(links, self.random.uniform(20, 1500))

    def _do_suspect(self) -> None:
        leader = self._leader_or_any()
        for node in self.world.nodes:
            if node is not leader and self.random.random() < 0.6:
                self.world.suspect(node, leader.slot)

    def _sever(self, links: list[tuple[int, int]], duration: float) -> None:
        world = self.world
        world.cut.update(links)
        world.say(f"cut {links} for {duration:.0f}")
        world.at(duration, world.cut.difference_update, links)

    def _do_split(self) -> None:
        size = self.random.randint(1, self.world.plan.voters - 1)
        group = set(self.random.sample(range(self.world.plan.voters), size))
        self._sever(self._between(group), self.random.uniform(50, 1200))

    def _between(self, group: set[int]) -> list[tuple[int, int]]:
        slots = range(self.world.plan.voters)
        return [(a, b) for a in slots for b in slots if (a in group) != (b in group)]

    def _do_isolate(self) -> None:
        self._sever(self._between({self._any().slot}), self.random.uniform(50, 1200))

    def _do_isolate_leader(self) -> None:
        self._sever(self._between({self._leader_or_any().slot}), self.random.uniform(50, 1200))

    def _do_one_way(self) -> None:
        a, b = self.random.sample(range(self.world.plan.voters), 2)
        self._sever([(a, b)], self.random.uniform(50, 1500))

    def _lag(self, slot: int) -> None:
        world = self.world
        world.lags[slot] = self.random.uniform(20, 150)
        world.say(f"slow {slot} by {world.lags[slot]:.0f}")
        world.at(self.random.uniform(100, 1500), world.lags.pop, slot, None)

    def _do_slow(self) -> None:
        self._lag(self._any().slot)

    def _do_slow_leader(self) -> None:
        self._lag(self._leader_or_any().slot)

    def _do_end_leader(self) -> None:
        """Its end is announced, maybe with others', and comes: before it has handed over,
        while it does, or after."""
        leader = self._leader_or_any()
        others = self.random.sample(range(self.world.plan.voters), self.random.randint(0, 2))
        self.world.hand_over(leader, {leader.slot, *others})
        self.world.at(self.random.choice((0, 10, 300)), self._crash, leader)

    # -- stories -----------------------------------------------------------------

    def _wait_for(self, condition: Callable[[], bool], limit: float) -> Step:
        waited = 0.0
        while not condition() and waited < limit:
            waited += 5
            yield 5

    def _amnesia(self) -> Step:
        """A vote for a new view is under way when its voter forgets it, comes back in
        the old view and helps to commit there; then the old vote arrives."""
        world, random = self.world, self.random
        k = world.plan.k
        while True:
            yield random.uniform(20, 200)
            leader = world.leader()
            if leader is None or leader.replica is None:
                continue
            heir = world.nodes[(leader.replica.view + 1) % world.plan.voters]
            rest = [node for node in world.nodes if node not in (leader, heir)]
            random.shuffle(rest)
            voters = rest[:k]  # with the heir, a quorum for the next view
            names = [node.slot for node in voters]
            links = [(slot, heir.slot) for slot in names]
            others = [node.slot for node in world.nodes if node.slot not in (*names, heir.slot)]
            for link in [*links, *((slot, other) for slot in names for other in others)]:
                world.held[link] = []
            group = [*names, heir.slot]
            silence = [(leader.slot, slot) for slot in group]
            world.cut.update(silence)
            for node in [*voters, heir]:
                world.suspect(node, leader.slot)
            yield from self._wait_for(
                lambda links=links: all(
                    any(isinstance(held, m.DoViewChange) for held in world.held.get(link, []))
                    for link in links
                ),
                900,
            )
            for node in voters:
                world.crash(node)
            world.cut.difference_update(silence)
            yield random.uniform(1, 40)
            for node in voters:
                world.restart(node)
            yield from self._wait_for(
                lambda voters=voters: all(
                    node.replica is not None and node.replica.status is Status.NORMAL
                    for node in voters
                ),
                500,
            )
            # The old leader goes on with those that forgot, without the heir ...
            apart = self._between({heir.slot})
            world.cut.update(apart)
            yield random.uniform(50, 300)
            # ... and then the heir hears the old votes, and all but the old leader.
            world.cut.difference_update(apart)
            alone = self._between({leader.slot})
            world.cut.update(alone)
            for link in links:
                world.release(link)
            world.held.clear()
            world.suspect(heir, leader.slot)
            yield random.uniform(300, 900)
            world.cut.difference_update(alone)

    def _stale_lease(self) -> Step:
        """A voter answers a heartbeat, forgets its promise, and helps to elect another."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(20, 200)
            leader = world.leader()
            if leader is None:
                continue
            rest = [node for node in world.nodes if node is not leader]
            random.shuffle(rest)
            forgetful, early = rest[: world.plan.k], rest[world.plan.k :]
            silence = [(leader.slot, node.slot) for node in early]
            silence += [(node.slot, leader.slot) for node in early]
            world.cut.update(silence)
            yield world.plan.timing.promise_ms * 1.1
            for node in forgetful:
                world.crash(node)
            yield random.uniform(0.5, 10)
            for node in forgetful:
                world.restart(node)
            yield from self._wait_for(
                lambda forgetful=forgetful: all(
                    node.replica is not None and node.replica.status is Status.NORMAL
                    for node in forgetful
                ),
                100,
            )
            alone = self._between({leader.slot})
            world.cut.update(alone)
            for node in rest:
                world.suspect(node, leader.slot)
            yield random.uniform(200, 500)
            world.cut.clear()

    def _stale_leader(self) -> Step:
        """A voter recovers beside a leader that was left behind by the others."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(50, 300)
            leader = world.leader()
            if leader is None or leader.replica is None:
                continue
            view = leader.replica.view
            alone = self._between({leader.slot})
            world.cut.update(alone)
            yield from self._wait_for(
                lambda view=view: (
                    (now := world.leader()) is not None
                    and now.replica is not None
                    and now.replica.view > view
                ),
                900,
            )
            yield random.uniform(20, 150)
            rest = [node for node in world.nodes if node is not leader]
            random.shuffle(rest)
            chosen = rest[: world.plan.k]
            for node in chosen:
                world.crash(node)
            world.cut.difference_update(alone)
            group = self._between({leader.slot, *(node.slot for node in chosen)})
            world.cut.update(group)
            yield random.uniform(5, 30)
            for node in chosen:
                world.restart(node)
            yield random.uniform(200, 500)
            world.cut.difference_update(group)

    def _minority(self) -> Step:
        """The leader is left with fewer than it needs, while the others go on."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(20, 200)
            leader = world.leader()
            if leader is not None:
                rest = [node.slot for node in world.nodes if node is not leader]
                group = {leader.slot, *random.sample(rest, world.plan.k - 1)}
                cut = self._between(group)
                world.cut.update(cut)
                yield random.uniform(500, 1500)
                world.cut.difference_update(cut)

    def _hasty(self) -> Step:
        """The leader is cut off and given up at once, while its lease still runs."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(50, 400)
            leader = world.leader()
            if leader is not None:
                cut = self._between({leader.slot})
                world.cut.update(cut)
                for node in world.nodes:
                    if node is not leader:
                        world.at(random.uniform(0, 20), world.suspect, node, leader.slot)
                yield random.uniform(100, 600)
                world.cut.difference_update(cut)

    def _rotate(self) -> Step:
        """Now these voters are a bare quorum, now those, and some forget on the way."""
        world, random = self.world, self.random
        slots = range(world.plan.voters)
        while True:
            group = set(random.sample(slots, world.plan.k + 1))
            world.cut = {(a, b) for a in slots for b in slots if not {a, b} <= group}
            leader = world.leader()
            for slot in group:
                if leader is not None and leader.slot not in group and random.random() < 0.8:
                    world.at(random.uniform(0, 50), world.suspect, world.nodes[slot], leader.slot)
            if random.random() < 0.2:
                self._crash(world.nodes[random.choice(slots)])
            yield random.uniform(30, 600)

    def _third_vote(self) -> Step:
        """A new leader lacks one vote when a voter it counts forgets; the last vote comes
        from one that knows of it. Only vectors *in* messages can tell the new leader."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(20, 200)
            leader = world.leader()
            if leader is None or leader.replica is None:
                continue
            heir = world.nodes[(leader.replica.view + 1) % world.plan.voters]
            rest = [node for node in world.nodes if node not in (leader, heir)]
            random.shuffle(rest)
            forgetful, last, loyal = rest
            x, h, q, p, y = (node.slot for node in (leader, heir, forgetful, last, loyal))
            # The heir and the forgetful one leave the leader; the last one only wishes to.
            world.cut = {(x, h), (h, x), (x, q), (q, x), (x, p), (h, p), (q, p)}
            world.cut |= {(h, y), (q, y)}
            for node in (heir, forgetful, last):
                world.suspect(node, x)
            yield from self._wait_for(
                lambda heir=heir, q=q: heir.replica is not None and q in heir.replica._changes,
                700,
            )
            world.crash(forgetful)
            world.cut = set(self._between({h}))
            yield random.uniform(1, 30)
            world.restart(forgetful)
            yield from self._wait_for(
                lambda node=forgetful: (
                    node.replica is not None and node.replica.status is Status.NORMAL
                ),
                400,
            )
            # The forgetful one helps to commit where the last one does not hear of it ...
            world.cut |= set(self._between({p}))
            yield random.uniform(60, 250)
            # ... and then the last one votes.
            world.cut -= {(h, p), (p, h), (y, p)}
            world.cut |= {(x, y)}
            world.suspect(loyal, x)
            world.suspect(last, x)
            yield random.uniform(200, 600)
            world.cut = set()

    def _two_lives(self) -> Step:
        """Two processes of a slot recover at the same time; then each is with one half of
        the others, and with the half that the leader is not in."""
        world, random = self.world, self.random
        k = world.plan.k
        while True:
            yield random.uniform(20, 200)
            leader = world.leader()
            victim = self._any()
            if leader is None or leader.slot == victim.slot or not world.crash(victim):
                continue
            yield random.uniform(1, 30)
            world.restart(victim)
            yield random.choice((0, random.uniform(0, 15)))
            first = world.nodes[victim.slot]
            second = world.replace(first)
            if second is None:
                continue
            yield from self._wait_for(
                lambda first=first, second=second: all(
                    node.replica is not None and node.replica.status is not Status.RECOVERING
                    for node in (first, second)
                ),
                random.uniform(20, 400),
            )
            rest = [
                node.slot for node in world.nodes if node.slot not in (leader.slot, victim.slot)
            ]
            random.shuffle(rest)
            here, there = random.sample((first.name, second.name), 2)
            ours = {leader.slot, here, *rest[: k - 1]}
            theirs = {there, *rest[k - 1 :]}
            links = [(a, b) for a in ours for b in theirs]
            links += [(b, a) for a, b in links]
            world.cut.update(links)
            yield random.uniform(300, 900)
            world.cut.difference_update(links)

    def _late_life(self) -> Step:
        """A life that died while it recovered is still heard of, when its successor has
        just taken its number."""
        world, random = self.world, self.random
        world.holds = (m.Recovery,)
        while True:
            yield random.uniform(20, 200)
            victim = self._any()
            if not world.crash(victim):
                continue
            slot = victim.slot
            links = [(slot, node.slot) for node in world.nodes if node.slot != slot]
            for link in links:
                world.held[link] = []
            yield random.uniform(1, 30)
            world.restart(victim)
            yield from self._wait_for(
                lambda links=links: any(world.held.get(link) for link in links), 100
            )
            world.crash(world.nodes[slot])
            late = {link: world.held.pop(link) for link in links}
            yield random.uniform(1, 10)
            world.restart(world.nodes[slot])
            for link, messages in late.items():
                if random.random() < 0.7:
                    world.held[link] = messages[:1]
                    world.at(random.uniform(0, 15), world.release, link)
            yield random.uniform(100, 500)

    def _double_promise(self) -> Step:
        """A voter goes on promising to wait for the leader while its second life, which
        promised nothing, helps to elect another."""
        world, random = self.world, self.random
        k = world.plan.k
        while True:
            yield random.uniform(20, 200)
            leader = world.leader()
            if leader is None:
                continue
            rest = [node for node in world.nodes if node.slot != leader.slot]
            random.shuffle(rest)
            loyal, early = rest[:k], rest[k:]
            silence = [(leader.slot, node.slot) for node in early]
            silence += [(node.slot, leader.slot) for node in early]
            heirs = [heir for node in loyal if (heir := world.replace(node)) is not None]
            # Nobody answers them yet: they are old when they are heard.
            unheard = [(node.slot, heir.slot) for heir in heirs for node in world.nodes]
            world.cut.update(unheard)
            yield world.plan.timing.promise_ms * random.uniform(0.2, 1.5)
            world.cut.update(silence)
            yield world.plan.timing.promise_ms * random.uniform(0.9, 1.2)
            world.cut.difference_update(unheard)
            yield from self._wait_for(
                lambda heirs=heirs: all(
                    heir.replica is not None and heir.replica.status is Status.NORMAL
                    for heir in heirs
                ),
                100,
            )
            world.cut.update(self._between({leader.slot}))
            for node in world.nodes:
                world.suspect(node, leader.slot)
            yield random.uniform(200, 500)
            world.cut.clear()

    def _stopped(self) -> Step:
        """The leader's machine is stopped, and its monotonic clock does not count that."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(50, 300)
            leader = world.leader()
            if leader is not None:
                length = random.uniform(0.3, 6) * world.plan.timing.promise_ms
                world.stop(leader, length)
                # What connected it to the others has been given up when it goes on.
                self._sever(self._between({leader.slot}), length + random.uniform(0, 100))
                for node in world.nodes:
                    if node is not leader and random.random() < 0.8:
                        world.at(random.uniform(0, 300), world.suspect, node, leader.slot)
                yield length

    def _slow_leader(self) -> Step:
        """A leader gets slow: for a moment, which nobody minds; then for long, and another
        leads in its place after a bounded time, and goes on leading."""
        world, random = self.world, self.random
        while True:
            yield random.uniform(50, 200)
            slow = world.leader()
            if slow is None:
                continue
            before = len(world.handovers)
            lag = random.uniform(30, 150)
            # Long enough to be measured once: asked, answered, and compared at a beat.
            world.lags[slow.slot] = moment = random.uniform(25, 45)
            yield 4 * moment + world.plan.timing.heartbeat_ms * random.uniform(1, 2)
            world.lags.clear()
            yield 2 * lag + 500
            self._expect(
                world.leader() is slow, f"{slow.slot} led on after a moment of {moment:.0f}"
            )
            self._expect(len(world.handovers) == before, "nobody handed over for a moment")
            world.lags[slow.slot] = lag
            yield 600 + 6 * lag
            found = world.leader()
            self._expect(
                found is not None and found is not slow,
                f"another leads in time than {slow.slot}, slow by {lag:.0f}",
            )
            yield random.uniform(500, 1000)
            self._expect(world.leader() is found, "the heir leads on")
            self._expect(len(world.handovers) == before + 1, "it was handed over once")
            world.lags.clear()
            yield 3000

    def _busy_leader(self) -> Step:
        """Whoever leads is slow for it: handing over does not help, and must not go on."""
        world = self.world
        world.leaders_lag = self.random.uniform(30, 100)
        yield 5500
        self._expect(2 <= len(world.handovers) <= 4, f"few hand-overs: {world.handovers}")

    def _announced_end(self) -> Step:
        """A leader's end is announced, maybe with others': one that stays leads instead, long
        before anybody could have missed the leader, and leads on when that is gone."""
        world, random = self.world, self.random
        slots = range(world.plan.voters)
        while True:
            yield random.uniform(50, 200)
            yield from self._wait_for(lambda: not world.impaired(), 500)
            leader = world.leader()
            if leader is None or world.impaired():
                continue
            others = [slot for slot in slots if slot != leader.slot]
            ending = {leader.slot, *random.sample(others, random.randint(0, world.plan.k))}
            before = len(world.handovers)
            for _ in range(10):  # there may be nobody for a moment who has all that is committed
                world.hand_over(leader, ending)
                if len(world.handovers) > before:
                    break
                yield HANDED_MS_MAX / 10
            # The leader may not hear what becomes of it, unless only it has what the heir lacks.
            handed = len(world.handovers) > before
            silent = random.random() < 0.5
            if handed and not self._has_all_of(leader, world.handovers[-1][2]):
                silent = False
            silence = [(slot, leader.slot) for slot in others] if silent else []
            world.cut.update(silence)
            yield HANDED_MS_MAX
            heir = world.leader()
            self._expect(
                heir is not None and heir.slot not in ending,
                f"one leads that stays: not {ending}, but {heir and heir.slot}",
            )
            self._crash(leader)
            world.cut.difference_update(silence)
            yield random.uniform(100, 600)
            self._expect(world.leader() is heir, "the heir leads on")
            self._expect(len(world.handovers) == before + 1, "it was handed over once")

    def _has_all_of(self, leader: Node, slot: int) -> bool:
        """Whether another voter has the whole log of a leader."""
        ours, theirs = leader.replica, self.world.nodes[slot].replica
        return ours is not None and theirs is not None and ours.log.last == theirs.log.last

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"not so at {self.world.now:.0f}: {what}")
