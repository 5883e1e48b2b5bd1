"""How fast each CPU family is: the spread of random members, and what a greedy search over knobs finds.

    python experiments/cpu_families/survey.py --layout tn --draws 12 --climb

prints one Markdown row per family and shape: best, median and worst GFLOP/s of the draws, and the best one's
speedup over the fastest baseline. `--climb` starts from the best draw and changes one knob at a time to whatever
is fastest: the speed a learner could reach inside that family.
"""

import argparse
import random
import statistics

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Verdict
from cudal2.target import CPU
from cudal2.worker.pool.pool import Pool

STYLE = "terse"  # a style changes names and comments, never the code: measuring one is enough


def judge(pool: Pool, family: Family, settings: list[Knobs], problem: Problem) -> list[tuple[float, Knobs, Verdict]]:
    """(GFLOP/s, knobs, verdict) of each setting, fastest first; a wrong kernel ends the survey."""
    sources = [corpus.render(family, knobs, problem.layout) for knobs in settings]
    found = []
    for knobs, verdict in zip(settings, pool.evaluate([Candidate(source, problem) for source in sources])):
        assert verdict is not None and verdict.timing, f"{family.name} {knobs}: {verdict and verdict.reason}"
        found.append((problem.flop / verdict.timing.candidate_us / 1e3, knobs, verdict))
    return sorted(found, key=lambda one: -one[0])


def climb(
    pool: Pool, family: Family, best: tuple[float, Knobs, Verdict], problem: Problem
) -> tuple[float, Knobs, Verdict]:
    """One round over the knobs, keeping of each the fastest value."""
    for knob, values in family.knobs.items():
        tried = [{**best[1], knob: value} for value in values if knob != "style" and value != best[1][knob]]
        allowed = [knobs for knobs in tried if not corpus.refusal(family, knobs, problem.layout)]
        best = max([best, *judge(pool, family, allowed, problem)], key=lambda one: one[0])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", choices=("nn", "tn"), default="tn")
    parser.add_argument("--shapes", nargs="+", default=["64_64_64", "128_128_128", "256_256_256", "512_512_512"])
    parser.add_argument("--families", nargs="+", default=[family.name for family in corpus.families(CPU)])
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--climb", action="store_true")
    parser.add_argument("--cache", default=WorkerConfig().cache)
    options = parser.parse_args()
    config = WorkerConfig(cache=options.cache, batch_ms=5, min_pairs=3, max_pairs=7, precision=0.03)
    print("| shape | family | best | median | worst GFLOP/s | best speedup |" + " climbed to |" * options.climb)
    print("|---|---|---:|---:|---:|---:|" + "---|" * options.climb)
    with Pool(config) as pool:
        for shape in options.shapes:
            problem = parse(shape, options.layout)
            for family in corpus.families(CPU):
                if options.layout not in family.layouts or family.name not in options.families:
                    continue
                rng = random.Random(f"{family.name} {shape}")
                settings = [s for s in corpus.settings(family, options.layout) if s["style"] == STYLE]
                drawn = judge(pool, family, rng.sample(settings, min(options.draws, len(settings))), problem)
                speeds = [speed for speed, _, _ in drawn]
                row = [shape, family.name, f"{speeds[0]:.1f}", f"{statistics.median(speeds):.1f}", f"{speeds[-1]:.1f}"]
                row.append(f"{drawn[0][2].speedup:.2f}")
                if options.climb:
                    speed, knobs, verdict = climb(pool, family, drawn[0], problem)
                    chosen = " ".join(f"{knob}={value}" for knob, value in knobs.items() if knob != "style")
                    row.append(f"{speed:.1f} ({verdict.speedup:.2f}×): {chosen}")
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
