"""What became of the mutations of searches, kind by kind: python experiments/mutation/kinds.py RUN…

`ok`: correct. `better`: the lower bound of a child's speedup lies above its parent's; `surely`: above the upper one.
`best`: the best kernel that its search found for a shape.
"""

import sys
from collections import Counter
from pathlib import Path

import msgspec

from cudal2.archive import Archive
from cudal2.search.proposer import Mutated, made


def main(folders: list[str]) -> None:
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("rendered", "all mutations")}
    for folder in folders:
        with Archive.of(Path(folder), create=False) as archive:
            samples = list(archive.samples("search"))
            for run in {sample.origin.run for sample in samples}:
                here = [sample for sample in samples if sample.origin.run == run]
                best = max(here, key=lambda sample: sample.low or 0.0)
                parents = {sample.source_hash[:12]: sample for sample in here}
                for sample in here:
                    try:
                        way = made(sample.origin.prompt)
                    except msgspec.DecodeError:
                        continue
                    facts = {"tried": 1, "ok": sample.low is not None, "best": sample is best}
                    # A neighbour's kernel has its parent elsewhere.
                    if isinstance(way, Mutated) and (parent := parents.get(way.parent)):
                        before = archive.verdict(parent.origin)
                        facts["better"] = (sample.low or 0.0) > (parent.low or 0.0)
                        timing = before.timing if before else None
                        facts["surely"] = bool(timing and (sample.low or 0.0) > timing.high)
                    kinds = {*way.kinds, "all mutations"} if isinstance(way, Mutated) else {"rendered"}
                    for kind in kinds:
                        counts.setdefault(kind, Counter()).update({name: int(fact) for name, fact in facts.items()})
    print("| kind | tried | ok | better | surely | best |\n|---|---|---|---|---|---|")
    for kind, found in sorted(counts.items(), key=lambda item: -item[1]["tried"]):
        tried = max(found["tried"], 1)
        figures = (found["tried"], f"{found['ok'] / tried:.0%}", found["better"], found["surely"], found["best"])
        print(f"| {kind} | {' | '.join(map(str, figures))} |")


main(sys.argv[1:])
