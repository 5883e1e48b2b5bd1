"""Why kernels fail that begin with a plan: because the plan cannot be carried out, or because the code is another.

    python experiments/smollm2/plans.py RUN/archive.sqlite

Of each verdict: how many kernels have a plan that no family has or that its family refuses, how many are, letter for
letter, what the family renders for their plan, and how many are something else. Texts without a kernel are left out.
"""

import sys
from collections import Counter, defaultdict
from pathlib import Path

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.target import Target, find

KINDS = "impossible", "kept", "changed"


def kind(source: str, target: Target) -> str:
    stated = corpus.stated(source, target)
    if stated is None:
        return "impossible"
    name, knobs = stated
    family = next(one for one in corpus.families(target) if one.name == name)
    if all(corpus.refusal(family, knobs, layout) for layout in family.layouts):
        return "impossible"
    return "kept" if corpus.keeps_its_plan(source, target) else "changed"


def main() -> None:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    with Archive(Path(sys.argv[1])) as archive:
        for sample in archive.samples():
            verdict, source = archive.verdict(sample.origin), archive.source(sample.source_hash)
            if verdict and source:
                found[verdict.status.value][kind(source, find(verdict.target))] += 1
    print("| verdict | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
    for status, kinds in sorted(found.items(), key=lambda item: -sum(item[1].values())):
        print(f"| {status} | " + " | ".join(str(kinds[one]) for one in KINDS) + " |")


if __name__ == "__main__":
    main()
