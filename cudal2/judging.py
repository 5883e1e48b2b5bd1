"""A round of judging: takes candidates with their origins, returns verdicts and archives them.

Training, the verification after supervised training, searches and new samples in evaluations are all judged here, with
the archive and the pool of a run folder that `opened` opens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.config import WorkerConfig
from cudal2.records import Candidate, HarnessFault, Verdict
from cudal2.worker.pool.pool import Pool


class NothingJudged(HarnessFault):
    """The harness failed on every candidate of a round."""


Progress = Callable[[Candidate, Verdict | None], None]
Reward = Callable[[Candidate, Verdict], float]
Explain = Callable[[Verdict, Origin], Verdict]
"""Adds to a verdict what is known of one sample and not of its candidate."""


def judge(
    pool: Pool,
    archive: Archive,
    asked: Sequence[tuple[Candidate, Origin]],
    progress: Progress = lambda candidate, verdict: None,
    reward: Reward | None = None,
    explain: Explain = lambda verdict, origin: verdict,
) -> list[Verdict | None]:
    """One verdict for each of `asked`, in order; equal candidates are judged once.

    Each verdict is archived at once, so that a kill does not lose it, under all origins of its candidate: with its
    `reward` where this function is given, and as `explain` says of each sample. Then `progress` is called. A candidate
    that the harness failed on gets None and is not archived. Raises NothingJudged where it failed on all of them.
    """
    origins: dict[Candidate, list[Origin]] = {}
    for candidate, origin in asked:
        origins.setdefault(candidate, []).append(origin)

    def keep(candidate: Candidate, verdict: Verdict | None) -> None:
        if verdict is not None:
            earned = {} if reward is None else {"reward": reward(candidate, verdict)}
            for origin in origins[candidate]:
                archive.add(explain(verdict, origin), candidate, msgspec.structs.replace(origin, **earned))
        progress(candidate, verdict)

    verdicts = dict(zip(origins, pool.evaluate(list(origins), keep)))
    if asked and all(verdict is None for verdict in verdicts.values()):
        first, remedy = asked[0][1], "Run `cudal2 doctor`, then start again to continue"
        fault = pool.fault or HarnessFault(f"no kernel of {first.kind} {first.run} could be judged", remedy)
        raise NothingJudged(fault.problem, fault.remedy) from fault
    found = ((verdicts[candidate], origin) for candidate, origin in asked)
    return [None if verdict is None else explain(verdict, origin) for verdict, origin in found]


@contextmanager
def opened(
    folder: str | Path, target: str, *workers: WorkerConfig, create: bool = True
) -> Iterator[tuple[Archive, list[Pool]]]:
    """The archive of a run folder, and for each of `workers` a pool that judges for `target`; both closed at the end.

    Raises ValueError where there is no archive and `create` is False. Where nothing can be judged here it raises
    HarnessFault before one is made.
    """
    with ExitStack() as stack:
        pools = [stack.enter_context(Pool(worker, target)) for worker in workers]
        if create and pools and not Archive.file(folder).exists():
            pools[0].environment()
        yield stack.enter_context(Archive.of(folder, create)), pools
