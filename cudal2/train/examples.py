"""What a kernel LM is trained on: pairs of a prompt and a source that a family renders to, drawn on every core."""

import os
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from typing import get_args

import msgspec

from cudal2 import corpus
from cudal2.config import SftConfig
from cudal2.policy import prompts
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.target import find
from cudal2.worker.lifetime import end, leave_with_parent

Example = tuple[str, str]
"""A prompt and the source that completes it."""

SHARD = 200
"""Examples that one process draws at a time. Each shard has a seed of its own, so what is drawn depends on neither
the number of cores nor on who was faster."""


def draw(config: SftConfig) -> list[Example]:
    """`config.samples` pairs of prompt and source, a larger number beginning with the smaller one's; no prompt names a
    held-out shape. With `config.plan` a source begins with what `corpus.plan` says of it.
    """
    shards = range(-(-config.samples // SHARD))
    workers = min(len(os.sched_getaffinity(0)), len(shards))
    if workers == 1:  # a process of its own would spend longer on its imports
        return list(islice(chain.from_iterable(map(partial(_shard, config), shards)), config.samples))
    # Not forked: this process may hold threads, and a GPU.
    with ProcessPoolExecutor(workers, get_context("spawn"), leave_with_parent) as pool:
        try:
            drawn = chain.from_iterable(pool.map(partial(_shard, config), shards))
            return list(islice(drawn, config.samples))
        except BaseException:  # Ctrl-C: the shards that wait take minutes
            end(pool)
            raise


def _shard(config: SftConfig, number: int) -> list[Example]:
    target, rng = find(config.target), random.Random(f"{config.seed} {number}")
    examples = []
    for _ in range(SHARD):
        layout = rng.choice(get_args(Layout))
        problem = _problem(rng, layout)
        prompt = prompts.render(config.prompt, False, problem, target)
        assert isinstance(prompt, str)
        sample = corpus.draw(target, layout, rng, problem.accumulate)
        examples.append((prompt, corpus.plan(sample) + sample.source if config.plan else sample.source))
    return examples


def _problem(rng: random.Random, layout: Layout) -> Problem:
    """A training shape of the corpus or, once in four, any at all, so that every prompt token is learnt."""
    if rng.random() < 0.75:
        problem = corpus.draw_problem(rng, layout)
    else:
        m, n, k = (8 * min(int(2 ** rng.uniform(0, 15)), 1 << 14) for _ in range(3))
        problem = Problem(m, n, k, layout)
    problem = msgspec.structs.replace(problem, accumulate=rng.choice(get_args(Accumulate)))
    return _problem(rng, layout) if corpus.held_out(problem) else problem
