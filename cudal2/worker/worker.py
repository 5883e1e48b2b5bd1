"""`Worker.evaluate`: one candidate in, one verdict out, and never the same work twice."""

import os
import time
from functools import cache as memoise
from pathlib import Path

import msgspec
import torch

import cudal2
from cudal2 import processor
from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Status, Timing, Verdict, digest, to_json, verdict_from_json
from cudal2.source import SourceRejected, check
from cudal2.target import find
from cudal2.worker import build, jail
from cudal2.worker.cache import Cache
from cudal2.worker.cpu.bench import CpuBench, Outcome
from cudal2.worker.exclusive import device


class Worker:
    """Judges candidates on this machine's processor.

    Raises HarnessFault, from any method, where the harness fails; what is wrong with a candidate is its verdict.
    Use it as a context manager: leaving it ends the processes it keeps.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.threads = config.threads or len(os.sched_getaffinity(0))
        self.kind = jail.choose(config.jail)
        self.cache = Cache(Path(config.cache).expanduser())
        self.environment = environment("cpu", self.threads)
        self._bench: CpuBench | None = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bench:
            self._bench.close()
            self._bench = None

    @property
    def bench(self) -> CpuBench:
        """What measures; made on first use, kept for the next candidate."""
        if self._bench is None:
            self._bench = CpuBench(self.config, self.kind, self.threads, build.runner())
        return self._bench

    def key(self, candidate: Candidate) -> str:
        """Under which a verdict is cached: candidate, environment and how hard we look."""
        settings = msgspec.structs.replace(self.config, cache="", build_jobs=0)
        return digest(candidate.key, self.environment.fingerprint, to_json(settings))

    def recall(self, candidate: Candidate) -> Verdict | None:
        """The verdict reached earlier on this candidate here, if any."""
        stored = self.cache.read("verdicts", self.key(candidate))
        if stored is None:
            return None
        return msgspec.structs.replace(verdict_from_json(stored), cached=True, seconds={})

    def build(self, candidate: Candidate) -> build.Build:
        """Check the source and compile it, or recall what came of it; a refusal is a Build with its status."""
        target = find(candidate.target)
        if not candidate.source.strip():
            return build.Build(Status.NO_SOURCE, log="the completion holds no source that defines hgemm")
        try:
            check(candidate.source, target)
        except SourceRejected as rejected:
            return build.Build(Status.REJECTED, log=str(rejected))
        with device(exclusive=False):
            return build.build(candidate.source, target, self.cache, self.kind, self.config.compile_seconds)

    def evaluate(self, candidate: Candidate) -> Verdict:
        """Build, verify and time a candidate, or recall the verdict."""
        with self.cache.lock("verdicts", self.key(candidate)):
            known = self.recall(candidate)
            if known:
                return known
            started = time.perf_counter()
            built = self.build(candidate)
            outcome = Outcome(built.status, built.log.strip().splitlines()[0] if built.log else "")
            seconds = {"build": time.perf_counter() - started}
            if built.status is Status.OK:
                waited = time.perf_counter()
                with device(exclusive=True):
                    seconds["wait"] = time.perf_counter() - waited
                    try:
                        outcome = self.bench.judge(built.library, candidate.problem)
                    except BaseException:
                        self.close()  # the next candidate gets fresh processes
                        raise
            verdict = Verdict(
                key=self.key(candidate),
                problem=candidate.problem,
                target=candidate.target,
                environment=self.environment,
                log=built.log,
                **{name: getattr(outcome, name) for name in outcome.__struct_fields__ if name != "seconds"},
                seconds=seconds | outcome.seconds,
            )
            self.cache.write("verdicts", verdict.key, to_json(verdict).encode())
            return verdict

    def baseline_seconds(self, problem: Problem) -> dict[str, float]:
        """Seconds a call of each baseline of the vendor at its best, by name."""
        with device(exclusive=True):
            return self.bench.baseline_seconds(problem)

    def compare_baseline_with_itself(self, problem: Problem) -> Timing:
        """A/A: the fastest baseline timed as a candidate would be; an honest harness finds 1.00."""
        with device(exclusive=True):
            return self.bench.compare_baseline_with_itself(problem)


@memoise
def environment(target: str, threads: int) -> Environment:
    """This machine as far as it bears on a CPU timing. Raises HarnessFault where the compiler is missing."""
    return Environment(
        device=processor.name(),
        threads=threads,
        compiler=build.compiler_name(),
        flags=" ".join((*build.FLAGS, *find(target).flags)),
        libraries=f"torch {torch.__version__}",
        harness=f"{cudal2.__version__}+{_harness()}",
    )


def _harness() -> str:
    """Digest of the worker's own sources: a verdict of an older harness is not recalled."""
    root = Path(__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".cpp"))
    return digest(*(path.read_text() for path in files))[:8]
