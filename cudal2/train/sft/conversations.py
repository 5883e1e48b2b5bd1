"""Conversations to learn from: attempts of archives, the verdict on each, and then a better kernel.

`policy.turns` words them, as it does when a policy writes turns, and drops the oldest attempts where there is no room.
Only the last answer counts in the loss: a kernel that is right and, if an attempt was right, surely faster than that.
What failed is never learnt.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
from transformers import PreTrainedTokenizerBase

from cudal2.archive import Archive
from cudal2.archive.records import Entry
from cudal2.archive.selection import Comparable
from cudal2.config import SftConfig
from cudal2.policy import prompts, turns
from cudal2.policy.sampling import tokenize
from cudal2.policy.tokenizer import encode_source
from cudal2.policy.turns import Attempt
from cudal2.problem import Problem
from cudal2.records import Status, digest
from cudal2.split import unseen
from cudal2.target import find
from cudal2.train.sft.examples import Row, complete, ending

FAST = 3
"""Which of the better kernels follows is drawn: of n, fastest first, the one at n·u^FAST, for u from 0 to 1. So half of
them are among the fastest eighth, and yet there are many different ones: when few were shown, how a kernel is written
was forgotten (experiments/smollm2)."""


def mixed(config: SftConfig, tokenizer: PreTrainedTokenizerBase, others: Callable[[int], list[Row]]) -> list[Row]:
    """Conversations and other rows in the share that `config` asks for, shuffled; `others` makes these, and is told how
    many are of use.

    Raises ValueError as `rows` does.
    """
    share, taught, rng = config.corpus.turns.share, rows(config, tokenizer), random.Random(f"share {config.seed}")
    rest = list[Row]()
    if share < 1:
        count = max(round(len(taught) * (1 - share) / share), 1)
        rest = others(count)
        rest = rng.sample(rest, min(count, len(rest)))
        most = max(round(len(rest) * share / (1 - share)), 1)
        taught = rng.sample(taught, min(most, len(taught)))
    print(f"{len(taught)} conversations beside {len(rest)} other samples", flush=True)
    return rng.sample([*taught, *rest], len(taught) + len(rest))


def rows(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """The conversations, each of at most `config.context` tokens. An attempt at a problem is in at most
    `corpus.turns.times` of them.

    Raises ValueError where a run has no archive, or there is nothing to learn from in all of them.
    """
    taught, too_long, attempted = list[Row](), 0, set[tuple[Problem, str]]()
    for problem, entries in judged(config):
        attempts = [entry for entry in entries if (problem, entry.source) not in attempted and better(entries, [entry])]
        attempted.update((problem, entry.source) for entry in attempts)
        for time in range(config.corpus.turns.times):
            made, left = _about(problem, entries, attempts, config, tokenizer, time)
            taught += made
            too_long += left if time == 0 else 0
    if not taught:
        runs = ", ".join(config.corpus.turns.runs)
        raise ValueError(
            f"each conversation that {runs} could give is longer than context={config.context}: raise it"
            if too_long
            else f"no attempt in {runs} has a better kernel beside it, for {config.target} and a shape that training "
            "may see: have more kernels judged for each shape there, or name other runs"
        )
    if too_long:
        print(
            f"{too_long} attempts are left out: with an answer they are longer than context={config.context}",
            flush=True,
        )
    return taught


def _about(
    problem: Problem,
    entries: Sequence[Entry],
    attempts: list[Entry],
    config: SftConfig,
    tokenizer: PreTrainedTokenizerBase,
    time: int,
) -> tuple[list[Row], int]:
    """Conversations in which these `attempts` occur once, in any order, with answers from the `entries`; and how many
    attempts are too long for any. Each `time` others are drawn."""
    target, end, environment = find(config.target), ending(tokenizer, config), entries[0].verdict.environment
    rng = random.Random(f"turns {config.seed} {problem.name} {environment.fingerprint}" + f" {time}" * bool(time))
    first = prompts.render(config.prompt, config.policy.chat, problem, target, environment=environment)
    alone, made, too_long = len(tokenize(tokenizer, first)), list[Row](), 0
    attempts = rng.sample(attempts, len(attempts))
    while attempts:
        before = attempts[-rng.randint(1, config.corpus.turns.attempts) :]
        faster = better(entries, before)
        kernel = faster[int(len(faster) * rng.random() ** FAST)]
        [ids] = encode_source(tokenizer, [complete(kernel.source, config.prompt, target)])
        tried, room = [Attempt(entry.source, entry.verdict) for entry in before], config.context - len(ids) - 1
        written = turns.fitted(tokenizer, first, tried, target, room) if room >= alone else None
        shown = written.shown if written else 0
        if written and shown:
            made.append(Row(np.array([*written.ids, *ids, end], np.int32), len(written.ids), digest(kernel.source)))
        too_long += not shown
        del attempts[len(attempts) - max(shown, 1) :]  # the next conversation shows those that had no room
    return made, too_long


def better(entries: Sequence[Entry], attempts: Sequence[Entry]) -> list[Entry]:
    """Those of the kernels that are right, and surely faster than each of the attempts that is right; fastest first.

    None is surely faster than what was not timed.
    """
    beaten = max((_high(entry) for entry in attempts if entry.verdict.ok), default=-1.0)
    faster = (entry for entry in entries if entry.verdict.ok and entry.low > beaten)
    return sorted(faster, key=lambda entry: entry.low, reverse=True)


def _high(entry: Entry) -> float:
    return entry.verdict.timing.high if entry.verdict.timing else float("inf")


def judged(config: SftConfig) -> Iterator[tuple[Problem, list[Entry]]]:
    """For each problem that training may see, and each environment, the kernels of all runs in order of their sources,
    each with its last verdict (of several runs the last one's). What is an edit of a kernel's built code is no text.

    Raises ValueError where a run has no archive, or nothing in it for the target.
    """
    every, places = list(Status), dict[tuple[Problem, str], list[Comparable]]()
    with ExitStack() as stack:
        for run in config.corpus.turns.runs:
            archive = stack.enter_context(Archive.of(run, create=False))
            here = [Comparable(archive, config.target, name) for name in archive.environments()]
            named = [(problem, kernels) for kernels in here for problem in kernels.problems(every)]
            if not named:
                raise ValueError(f"corpus.turns.runs: the archive of {run} holds nothing for {config.target}")
            for problem, kernels in named:
                if not unseen(problem):
                    places.setdefault((problem, kernels.fingerprint), []).append(kernels)
        for problem, fingerprint in sorted(places):
            entries = [
                entry for kernels in places[problem, fingerprint] for entry in kernels.latest(problem, every, -1)
            ]
            by_source = {entry.source: entry for entry in entries}
            yield problem, [by_source[source] for source in sorted(by_source)]
