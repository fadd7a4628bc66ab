"""python -m tests.sim --seed N [--schedules M] [--mutant NAME] [--story NAME] [--trace]"""

import argparse
import sys
import time

from tests.sim.mutants import MUTANTS
from tests.sim.plan import STORIES
from tests.sim.schedule import run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the first schedule's seed")
    parser.add_argument("--schedules", type=int, default=1, help="how many, one seed after another")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break the protocol like this")
    parser.add_argument("--story", choices=STORIES, help="schedules of this story only")
    parser.add_argument("--trace", action="store_true", help="print every event")
    args = parser.parse_args()
    print(f"seed {args.seed} schedules {args.schedules} mutant {args.mutant}", flush=True)
    began = time.perf_counter()
    events = ops = reads = snapshots = boots = 0
    for seed in range(args.seed, args.seed + args.schedules):
        outcome = run_schedule(seed, args.mutant, story=args.story, trace=args.trace)
        events += outcome.events
        ops += outcome.ops
        reads += outcome.reads
        snapshots += outcome.snapshots
        boots += outcome.boots
        if outcome.trace is not None:
            print("\n".join(outcome.trace))
        if outcome.violation is not None:
            mutant = f" --mutant {args.mutant}" if args.mutant else ""
            mutant += f" --story '{args.story}'" if args.story else ""
            print(f"seed {seed} (k={outcome.k}, story {outcome.story}): {outcome.violation}")
            print(f"replay: python -m tests.sim --seed {seed}{mutant}")
            return 1
    seconds = time.perf_counter() - began
    print(
        f"{args.schedules} schedules in {seconds:.1f} s ({args.schedules / seconds * 60:.0f} a "
        f"minute): {events} events, {ops} ops, {reads} reads, {boots} restarts, "
        f"{snapshots} snapshots; no violation"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
