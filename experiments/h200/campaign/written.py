"""What the policy of a campaign wrote: how much of it is a rendering of a family, and which settings were known.

    cudal2 unpack experiments/h200/campaign/parcel runs/h200-all
    python experiments/h200/campaign/written.py runs/h200-all

A kernel counts as a rendering if it is, letter for letter, what its family renders for the plan it begins with; its
setting counts as known if data/settings has it for any shape, in whatever style it is written.
"""

import json
import sys
from pathlib import Path

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.files import asset
from cudal2.target import find

TARGET = "sm_90a"


def setting(family: str, knobs: corpus.Knobs) -> tuple[str, str]:
    return family, json.dumps({name: value for name, value in knobs.items() if name != "style"}, sort_keys=True)


def main(folder: Path) -> None:
    lines = asset("data", "settings", f"{TARGET}.jsonl").read_text().splitlines()
    known = {setting(one["family"], one["knobs"]) for one in map(json.loads, lines)}
    total = rendered = stands = 0
    with Archive.of(folder, create=False) as archive:
        for sample in archive.samples("search"):
            if sample.origin.policy != "policy":
                continue
            source = archive.source(sample.source_hash)
            stated = corpus.stated(source, find(TARGET))
            total += 1
            rendered += corpus.keeps_its_plan(source, find(TARGET))
            stands += stated is not None and setting(*stated) in known
    print(f"{total} kernels: {rendered / total:.1%} renderings ({rendered}), {stands / total:.1%} known ({stands})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
