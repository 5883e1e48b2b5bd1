"""Was what GRPO added to a first sample only a surer choice? Beside it, the likeliest kernel of the policy before.

    python experiments/h200/learning/likeliest.py data/policy/sm_90a BEFORE AFTER…  # folders of searches on one machine

The policy writes its likeliest kernel for every problem of BEFORE (at a temperature of nearly 0; on a processor in half
a minute). How fast that is stands in the searches, where one of them has judged it. Printed is how many first kernels
are just that, and the first kernel's speed less its, in logarithms, with a 95% interval over the problems where it is
known.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import numpy as np
from first import FAILED, interval

from cudal2.archive.records import Sample
from cudal2.archive.store import Archive
from cudal2.completion import extract
from cudal2.config import PolicyConfig, PromptConfig
from cudal2.policy import prompts, sampling
from cudal2.policy.learnt import stated
from cudal2.policy.model import load
from cudal2.problem import Problem
from cudal2.records import digest
from cudal2.target import find

TARGET, SURE = find("sm_90a"), 0.05

Searched = Mapping[Problem, list[Sample]]


def searched(folder: Path) -> Searched:
    """The samples of each problem in their order."""
    found = defaultdict(list)
    with Archive.of(folder, create=False) as archive:
        for sample in sorted(archive.samples("search"), key=lambda sample: (sample.origin.step, sample.origin.index)):
            found[sample.problem].append(sample)
    return found


def likeliest(path: str, problems: list[Problem]) -> dict[Problem, str]:
    """Of each problem the digest of the kernel that the policy writes first; none where the text holds no kernel."""
    config = PolicyConfig(path=path, temperature=SURE)
    model, words = load(config, TARGET.name)
    template = PromptConfig(template=stated(path).template)
    asked = [prompts.render(template, False, problem, TARGET) for problem in problems]
    sources = [extract(text, TARGET) for text in sampling.sample(model, words, asked, config, 0, target=TARGET)]
    return {problem: digest(source) for problem, source in zip(problems, sources) if source}


def log(sample: Sample) -> float:
    return math.log(max(FAILED, sample.speedup or 0))


def main(path: str, *folders: str) -> None:
    searches = {folder: searched(Path(folder)) for folder in folders}
    sure = likeliest(path, list(searches[folders[0]]))
    known = {
        problem: mean(logs)
        for problem, source in sure.items()
        if (logs := [log(one) for s in searches.values() for one in s[problem] if one.source_hash == source])
    }
    print(f"the likeliest kernel was judged for {len(known)} of {len(sure)} problems")
    for folder, found in searches.items():
        same = sum(found[problem][0].source_hash == source for problem, source in sure.items())
        less = interval(np.array([log(found[problem][0]) - value for problem, value in known.items()]), np.array)
        print(f"{folder}: {same} first kernels are the likeliest; less it {less}")


if __name__ == "__main__":
    main(*sys.argv[1:])
