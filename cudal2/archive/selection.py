"""Selects kernels of an archive to show or to try: contrasting exemplars, parents, neighbours' kernels, failures.

Only verdicts of one target that were reached in one environment may be compared (`Comparable`).

Kernels may be of one *island*, after FunSearch (Romera-Paredes et al., Nature 625, 2024; the prompts of CUDA-L1,
arXiv:2507.14111, may draw from such). A prompt shows kernels of one island only, and the kernels written from it join
that island, so that islands evolve separately. Every so many steps the worse half of them, by their best kernel, is
emptied, and each of these begins anew with the best kernel of one of the others.

All this follows from the seed, the step and the samples of earlier steps, so a killed run continues with the same
prompts: the island of a prompt is drawn from the seed, its step and its problem, which are in every sample's origin.
From these the history of the islands is computed again. This differs from the paper:

- islands begin empty, and an empty island shows nothing; FunSearch gives each the same first program;
- a group's samples share their prompt, so they all join one island;
- each problem has islands of its own, as speeds of two problems do not compare;
- they begin anew after steps, not hours;
- which kernels of the island are shown is chosen by contrast (`contrasting`), not by clusters of equal score.
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from cudal2.archive.records import Entry
from cudal2.archive.store import Archive
from cudal2.config import PromptConfig
from cudal2.form import kernel_form
from cudal2.problem import Problem, parse
from cudal2.records import Status, edit_from_json

_HERE = "target = :target AND :fingerprint IN ('*', fingerprint)"
_STATUS = "status IN (SELECT value FROM json_each(:statuses))"


class Comparable(msgspec.Struct, frozen=True):
    """What `archive` holds for `target` and the environment of that `fingerprint`; ANY compares across devices.

    For each kernel the last verdict counts.
    """

    archive: Archive
    target: str
    fingerprint: str

    def ranked(self, problem: Problem, limit: int = -1) -> list[Entry]:
        """Correct kernels for `problem`, by the lower bound of their speedup, best first; -1: all of them."""
        return self._entries("status = 'ok' ORDER BY low DESC, id LIMIT :limit", problem, limit)

    def distinct(self, problem: Problem, limit: int) -> list[Entry]:
        """The first `limit` of the `ranked` kernels that differ in what is built (`cudal2.form`), not in text alone."""
        size, by_form = limit, dict[str, Entry]()
        while len(by_form) < limit:
            ranked = self.ranked(problem, size)
            for entry in ranked:
                by_form.setdefault(kernel_form(entry.source, entry.edit), entry)
            if len(ranked) < size:
                break
            size *= 4
        return list(by_form.values())[:limit]

    def best(self, problem: Problem) -> Entry | None:
        """The kernel with the greatest lower bound of the speedup, None where none is correct."""
        return next(iter(self.ranked(problem, 1)), None)

    def latest(self, problem: Problem, statuses: Sequence[Status], limit: int) -> list[Entry]:
        """The latest `limit` kernels for `problem` with one of these statuses, latest first; no edited ones."""
        return self._entries(f"{_STATUS} AND edit IS NULL ORDER BY id DESC LIMIT :limit", problem, limit, statuses)

    def written(
        self, problem: Problem, statuses: Sequence[Status] = (Status.OK,), before: int | None = None
    ) -> list[tuple[int, Entry]]:
        """The samples for `problem` with one of these statuses, ordered by step and index: the step of each, and its
        kernel with the verdict on that sample. Only steps before `before` (None: all); no edited kernels."""
        query = (
            "SELECT step, text, body FROM samples JOIN verdicts ON verdicts.id = samples.verdict "
            f"JOIN sources ON sources.hash = verdicts.source WHERE {_HERE} AND problem = :problem AND {_STATUS} "
            "AND (:before IS NULL OR step < :before) ORDER BY step, kind, run, position"
        )
        rows = self.archive.rows(query, self._values(problem, statuses) | {"before": before})
        return [(step, Entry(text, self.archive.read(body))) for step, text, body in rows]

    def problems(self, statuses: Sequence[Status] = (Status.OK,)) -> list[Problem]:
        """The problems that have a kernel with one of these statuses, in order."""
        rows = self.archive.rows(
            f"SELECT DISTINCT problem FROM latest WHERE {_HERE} AND {_STATUS}",
            {"target": self.target, "fingerprint": self.fingerprint, "statuses": json.dumps(statuses)},
        )
        return sorted(parse(name) for (name,) in rows)

    def _entries(
        self, condition: str, problem: Problem, limit: int, statuses: Sequence[Status] = (Status.OK,)
    ) -> list[Entry]:
        values = self._values(problem, statuses) | {"limit": limit}
        query = f"SELECT text, body, edit FROM latest WHERE {_HERE} AND problem = :problem AND {condition}"
        return [
            Entry(text, self.archive.read(body), edit_from_json(edit) if edit else None)
            for text, body, edit in self.archive.rows(query, values)
        ]

    def _values(self, problem: Problem, statuses: Sequence[Status]) -> dict[str, Any]:
        place = {"target": self.target, "fingerprint": self.fingerprint}
        return place | {"problem": problem.name, "statuses": json.dumps(statuses)}


EXPLAINED = (Status.REJECTED, Status.COMPILE_ERROR, Status.PLAN_ERROR, Status.LAUNCH_ERROR)
"""Statuses of failures whose log tells an author what to change."""

Ranked = Callable[[Problem], list[Entry]]
"""Correct kernels for a problem, best first: all of an archive, or one island of it."""


SECTOR = 16
"""Numbers of 16 bits in the 32 bytes that a GPU's memory moves at least."""
ASTRAY = 2
"""How far problems are apart, in octaves of a size, if rows of the one are whole sectors and rows of the other not."""


def by_distance(problem: Problem, others: Sequence[Problem]) -> list[Problem]:
    """The problems of the same kind (all but the shape), nearest first: Euclidean in (log M, log N, log K, 2 log M·N)
    and in whether rows of A and B are whole sectors.

    Speed depends on the number of tiles more than on either side of C: on an H200 the best 12 settings of the
    nearest problems came within 1.8% of the best known, without the term of M·N within 2.8%. Where rows are no whole
    sectors, loads are slow there, and other settings fast (experiments/h200/known_settings/sectors.py).
    """

    def distance(other: Problem) -> float:
        m, n, k = (math.log2(a / b) for a, b in ((problem.m, other.m), (problem.n, other.n), (problem.k, other.k)))
        return math.hypot(m, n, k, 2 * (m + n), ASTRAY * (whole_sectors(other) != whole_sectors(problem)))

    return sorted((other for other in others if other.kind == problem.kind), key=distance)


def whole_sectors(problem: Problem) -> bool:
    """Whether each row of A and of B, as they are stored, begins where a sector does."""
    rows = (problem.k, problem.k if problem.layout == "tn" else problem.n)
    return not any(row % SECTOR for row in rows)


def nearest(
    kernels: Comparable, problem: Problem, limit: int, problems: Sequence[Problem] | None = None
) -> list[Entry]:
    """Best kernels of up to `limit` other problems of the same kind, nearest first.

    `problems` are all that have a correct kernel, if the caller knows them already.
    """
    others = [p for p in by_distance(problem, kernels.problems() if problems is None else problems) if p != problem]
    bests = (kernels.best(other) for other in others[:limit])
    return [entry for entry in bests if entry is not None]


def island(kernels: Comparable, prompt: PromptConfig, problem: Problem, seed: int, step: int | None) -> Ranked:
    """The kernels of the island that the prompt for that problem draws from at that step (None: after training).

    A seed other than training's gives other islands.
    """
    count = prompt.islands
    mine = island_number(seed, step or 0, problem, count)

    def ranked(other: Problem) -> list[Entry]:
        born = kernels.written(other, before=step)
        return fastest_first(all_islands(other, born, count, prompt.island_steps, seed, step)[mine])

    return ranked


def exemplars(
    kernels: Comparable, problem: Problem, count: int, rng: random.Random, ranked: Ranked | None = None
) -> list[Entry]:
    """Up to `count` correct, timed kernels of contrasting speed for a prompt, fastest first: the problem's own and, if
    these are too few, its neighbours'. `ranked` may restrict them to an island."""
    by_source: dict[str, Entry] = {}
    for other in by_distance(problem, kernels.problems()):
        if len(by_source) >= count:
            break
        for entry in (ranked or kernels.ranked)(other):
            if _shows_speed(entry):
                by_source.setdefault(entry.source, entry)
    return contrasting(list(by_source.values()), count, rng)


def parent(
    kernels: Comparable, problem: Problem, among: int, rng: random.Random, ranked: Ranked | None = None
) -> Entry | None:
    """A kernel to be improved: one of the best `among` of the problem, or of the nearest one that has any."""
    for other in by_distance(problem, kernels.problems()):
        if chosen := among_best([one for one in (ranked or kernels.ranked)(other) if _shows_speed(one)], among, rng):
            return chosen
    return None


def among_best(entries: Sequence[Entry], count: int, rng: random.Random) -> Entry | None:
    """One of the `count` fastest of these timed kernels; None where there are none."""
    best = sorted(entries, key=lambda entry: entry.low, reverse=True)[:count]
    return rng.choice(best) if best else None


def _shows_speed(entry: Entry) -> bool:
    """Whether a kernel was timed and is not edited, for the speed of an edited kernel is not that of its source."""
    return entry.verdict.timing is not None and entry.edit is None


def contrasting(entries: list[Entry], count: int, rng: random.Random) -> list[Entry]:
    """Up to `count` of these timed kernels, fastest first.

    They are ranked, cut into `count` buckets of equal size, and one is drawn from each: good, medium, slow; after the
    contrastive exemplars of CUDA-L1 (arXiv:2507.14111).
    """
    entries = sorted(entries, key=lambda entry: entry.low, reverse=True)
    count = min(count, len(entries))
    edges = [len(entries) * i // count for i in range(count + 1)] if count else []
    return [rng.choice(entries[low:high]) for low, high in pairwise(edges)]


def failures(kernels: Comparable, problem: Problem, count: int, before: int | None = None) -> list[Entry]:
    """The latest `count` kernels that could not be built or launched: the problem's first, then its neighbours'. Only
    samples from steps before `before`; None: all."""
    failed: list[Entry] = []
    for other in by_distance(problem, kernels.problems(EXPLAINED)):
        if len(failed) >= count:
            break
        if before is None:
            failed += kernels.latest(other, EXPLAINED, count - len(failed))
        else:
            latest = {entry.source: entry for _, entry in reversed(kernels.written(other, EXPLAINED, before))}
            failed += list(latest.values())[: count - len(failed)]
    return failed


Born = Sequence[tuple[int, Entry]]
"""Correct, timed kernels for one problem, each with the step that wrote it, in order of the step."""
Island = dict[str, Entry]
"""Kernels by their source."""


def island_number(seed: int, step: int, problem: Problem, count: int) -> int:
    """The number, below `count`, of the island whose kernels the prompt of that step and problem shows."""
    return random.Random(f"island {seed} {step} {problem.name}").randrange(count)


def all_islands(problem: Problem, born: Born, count: int, period: int, seed: int, step: int | None) -> list[Island]:
    """The kernels of each island when `step` begins (None: in the end).

    The worse half begins anew before each step that is a multiple of `period`; 0: never.
    """
    islands: list[Island] = [{} for _ in range(count)]
    due = period
    ends = [] if step is None else [(step, None)]
    for when, entry in [*born, *ends]:
        while period and due <= when:
            _begin_anew(islands, random.Random(f"founders {seed} {due} {problem.name}"))
            due += period
        if entry is not None:
            islands[island_number(seed, when, problem, count)].setdefault(entry.source, entry)
    return islands


def fastest_first(island: Island) -> list[Entry]:
    """The island's kernels by the lower bound of their speedup, best first."""
    return sorted(island.values(), key=lambda entry: entry.low, reverse=True)


def _begin_anew(islands: list[Island], rng: random.Random) -> None:
    """Empties the worse half (rounded down; ties by chance), and starts each with the best kernel of another."""
    bests = [max((entry.low for entry in island.values()), default=0.0) for island in islands]
    order = sorted(range(len(islands)), key=lambda number: (bests[number], rng.random()))
    half = len(islands) // 2
    for worse in order[:half]:
        founders = fastest_first(islands[rng.choice(order[half:])])[:1]
        islands[worse] = {founder.source: founder for founder in founders}
