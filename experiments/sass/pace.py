"""Edits a second by the clock on the wall, of one game at a time, and where the time goes.

    python experiments/sass/pace.py --seconds 60 > pace.txt           # on the GPU; keys of conf/sass.yaml may follow
    python experiments/sass/pace.py --instant                         # no GPU: what a search itself takes

Three kernels, three searches each. Milliseconds a measurement: `search` is the search's own Python with its journal,
`judge` what EditBench does beside the rest, `load` modules, `kernels` what the GPU was timed at, `turns` what a turn
takes beyond that (graphs, the way to the runner and back), `compare` outputs, `check` all else that may be spoilt,
`inputs` fresh ones. Then the unedited kernel beside itself: as a search measures it, with half the interval in
percent, and as a winner is confirmed.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import games

from cudal2.config import SassConfig, load
from cudal2.records import Edit, Measured, Status
from cudal2.sass.polish import run, subject
from cudal2.sass.polish.subject import Judge, Subject
from cudal2.tracking import read_metrics

KERNELS = (("small", "256_128_256"), ("multistage", "2048_2048_2048"), ("splitk", "4096_4096_4096"))
METHODS = ("random", "greedy", "ppo")
PARTS = ("search", "judge", "load", "kernels", "turns", "compare", "check", "inputs")
REPEATS = 5


class Clock:
    """Seconds by part; what is timed inside of another part counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            whole = time.perf_counter() - started
            self.seconds[name] += whole - self._inside.pop()
            self._inside[-1] += whole

    def watch(self, owner: type, method: str, name: str) -> None:
        """From now on that method's time is that part's; of `turns` the GPU's own seconds are `kernels`."""
        plain: Callable[..., Any] = getattr(owner, method)

        @wraps(plain)
        def timed(*arguments: Any, **keys: Any) -> Any:
            with self.part(name):
                found = plain(*arguments, **keys)
            if name == "turns":
                self.seconds["turns"] -= sum(found)
                self.seconds["kernels"] += sum(found)
            return found

        setattr(owner, method, timed)


def watch(clock: Clock) -> None:
    from cudal2.worker.cuda.edit_pairs import Beside
    from cudal2.worker.cuda.session import Runner

    for method, name in (("load", "load"), ("arrange", "load"), ("_compare", "compare"), ("check", "check")):
        clock.watch(Beside, method, name)
    clock.watch(Beside, "renew", "inputs")
    clock.watch(Runner, "turns", "turns")


class Watched:
    """A judge whose measurements are timed; those of the search under way are in `found`."""

    def __init__(self, clock: Clock, judge: Judge) -> None:
        self.clock, self.judge = clock, judge
        self.found: list[Measured] = []
        self.parts: list[dict[str, float]] = []

    def measure(self, edit: Edit, best: float) -> Measured:
        with self.clock.part("judge"):
            self.found.append(self.judge.measure(edit, best))
        if len(self.found) == 1:  # where the parent is looked at
            self.clock.seconds.clear()
        return self.found[-1]

    def again(self, edit: Edit) -> Measured:
        """The search is over."""
        if not self.parts:
            self.parts.append({name: 1e3 * self.clock.seconds[name] / (len(self.found) - 1) for name in PARTS})
        return self.found[-1]


@contextmanager
def instant(subject: Subject, config: SassConfig) -> Iterator[Judge]:
    """Says anything, at once, and always the same."""

    def measure(edit: Edit, best: float = 1.0) -> Measured:
        speedup = random.Random(edit.name).gauss(0.99, 0.02)
        return Measured(Status.OK, speedup, 0.995 * speedup, 1.005 * speedup, 4)

    yield Judge(measure, measure, measure, lambda: Measured(Status.OK, 1.0, 1.0, 1.0, 1), "instant")


def show(what: Subject, config: SassConfig, name: str, clock: Clock, opened: Any) -> None:
    """The searches of one kernel, then the unedited kernel beside itself."""
    with opened(what, config) as judge:
        for method in METHODS:
            watched = Watched(clock, judge)

            @contextmanager
            def given(*_: object, watched: Watched = watched) -> Iterator[Judge]:
                yield Judge(watched.measure, watched.again, watched.again, judge.floor, judge.environment)

            run.opened = given
            run.compare(what, config, (method,))
            rows = read_metrics(Path(config.run) / method / "metrics.jsonl")
            each = 1e3 * (rows[-1]["seconds"] - rows[0]["seconds"]) / (len(rows) - 1)
            if not watched.parts:
                print(f"{name:<26} {method:<7} no edit was right", flush=True)
                continue
            parts = watched.parts[0]
            parts["search"] = each - sum(parts.values())
            bad = sum(one.status is not Status.OK for one in watched.found)
            pairs = median(one.pairs for one in watched.found if one.status is Status.OK)
            print(
                f"{name:<26} {method:<7} {1e3 / each:>6.1f}/s {pairs:>5.0f} {each:>7.2f}  "
                + " ".join(f"{parts[part]:>7.2f}" for part in PARTS)
                + f"  {bad} not ok" * bool(bad),
                flush=True,
            )
        if opened is not instant:
            same = [judge.measure(unedited(what), 1.0) for _ in range(REPEATS)]
            said = " ".join(
                f"{one.speedup:.4f}±{50 * (one.high - one.low) / max(one.speedup, 1e-9):.2f}" for one in same
            )
            started = time.perf_counter()
            sure = judge.floor()
            took = time.perf_counter() - started
            print(
                f"{name:<26} A/A {said}; confirmed {sure.speedup:.4f} [{sure.low:.4f}, {sure.high:.4f}] in {took:.1f} s"
            )


def unedited(what: Subject) -> Edit:
    from cudal2.sass.game.play import unedited as made

    return made(what.listing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE of conf/sass.yaml")
    parser.add_argument("--measurements", type=int, default=200, help="of each search")
    parser.add_argument("--seconds", type=float, default=60.0, help="after so long no other kernel is begun")
    parser.add_argument("--instant", action="store_true", help="a judge that says anything, at once")
    arguments, rest = parser.parse_known_args()
    clock, started = Clock(), time.perf_counter()
    opened = instant if arguments.instant else run.opened
    if not arguments.instant:
        watch(clock)
    print(f"{'kernel':<26} search    edits  pairs   ms each " + " ".join(f"{part:>7}" for part in PARTS))
    for family, size in KERNELS:
        if time.perf_counter() - started > arguments.seconds:
            break
        with TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cu"
            path.write_text(games.source(family, size)[0])
            keys = [f"run={folder}/run", f"problem={size}", f"search.measurements={arguments.measurements}", "floor=0"]
            keys += [] if arguments.instant else ["judge=gpu", "worker.protocols=[]"]
            config = load("sass", [*keys, *arguments.overrides, *rest], SassConfig)
            what = subject.find(path, config)
            show(what, config, f"{family} {size}, {len(what.listing.instructions)}", clock, opened)


if __name__ == "__main__":
    main()
