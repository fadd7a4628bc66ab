"""python -m tests.tier --seed N [--schedules M] [--mutant NAME] [--trace]"""

import argparse
import sys
import time

from tests.tier.mutants import MUTANTS
from tests.tier.schedule import run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tier", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the first schedule's seed")
    parser.add_argument("--schedules", type=int, default=1, help="how many, one seed after another")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break the tier like this")
    parser.add_argument("--trace", action="store_true", help="print what happened to objects")
    args = parser.parse_args()
    print(f"seed {args.seed} schedules {args.schedules} mutant {args.mutant}", flush=True)
    began = time.perf_counter()
    total = {"manifests": 0, "restores": 0, "take_overs": 0, "requests": 0, "deleted": 0}
    for seed in range(args.seed, args.seed + args.schedules):
        outcome = run_schedule(seed, args.mutant)
        for name in total:
            total[name] += getattr(outcome, name)
        if args.trace:
            print("\n".join(f"{verb} {name}" for verb, name in outcome.record))
        if outcome.violation is not None:
            mutant = f" --mutant {args.mutant}" if args.mutant else ""
            print(f"seed {seed}: {outcome.violation}")
            print(f"replay: python -m tests.tier --seed {seed}{mutant}")
            return 1
    seconds = time.perf_counter() - began
    counts = ", ".join(f"{count} {name}" for name, count in total.items())
    print(f"{args.schedules} schedules in {seconds:.1f} s: {counts}; no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
