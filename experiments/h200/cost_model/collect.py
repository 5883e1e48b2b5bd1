"""Every setting whose speed some archive of this repository holds, in the form of speeds.jsonl.

    cudal2 unpack experiments/h200/campaign/parcel runs/h200-all
    mkdir -p runs/h100
    for part in experiments/smollm2/h100/*.tar.xz; do tar xJf "$part" -C runs/h100 --one-top-level; done
    python experiments/h200/cost_model/collect.py runs/h200-all runs/h100 > experiments/h200/cost_model/speeds.jsonl

Verdicts that are `ok`, of fp16 `tn` `f32` products on `sm_90a`. The setting is evolution's prompt, or the plan of a
text that is letter for letter what its family renders for it; of the other texts, the setting whose rendering they are
all the same. What is left (texts of the policy's own) is counted on standard error. A setting that was judged several
times on one device has the geometric mean. Three minutes, most of them for texts that do not keep their plan.
"""

import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import msgspec
from recorded import Measured

from cudal2 import arch, corpus
from cudal2.archive import Archive
from cudal2.corpus.nearest import nearest
from cudal2.records import Status, to_json
from cudal2.search.proposer import Setting
from cudal2.target import find

TARGET = find("sm_90a")


@cache
def written(source: str) -> Setting | None:
    """The setting that a text is the rendering of."""
    stated = corpus.stated(source, TARGET)
    if stated is None or corpus.keeps_its_plan(source, TARGET):
        return stated and Setting(*stated)
    return found(corpus.without_plan(source), *stated)


BODIES: dict[str, Setting | None] = {}


def found(body: str, family: str, knobs: corpus.Knobs) -> Setting | None:
    """The setting whose rendering a text without its plan is; sought from these knobs."""
    if body not in BODIES:
        near = nearest(body, TARGET, "tn", family, knobs)
        BODIES[body] = Setting(near.family, near.knobs) if near.is_it else None
    return BODIES[body]


def plain(setting: Setting) -> Setting:
    """The same in one style, which does not change the speed."""
    return Setting(setting.family, setting.knobs | {"style": "plain"})


def main(folders: list[Path]) -> None:
    speeds: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    said: Counter[str] = Counter()
    for path in sorted(one for folder in folders for one in folder.rglob("archive.sqlite")):
        with Archive(path, create=False) as archive:
            for sample in archive.samples():
                problem, origin = sample.problem, sample.origin
                if (sample.target, problem.layout, problem.accumulate) != (TARGET.name, "tn", "f32"):
                    continue
                said["verdicts"] += 1
                if sample.status is not Status.OK:
                    said["not ok"] += 1
                    continue
                proposed = origin.prompt.startswith('{"family"')
                setting = (
                    msgspec.json.decode(origin.prompt, type=Setting)
                    if proposed
                    else written(archive.source(sample.source_hash))
                )
                if setting is None:
                    said["ok, but no rendering"] += 1
                    continue
                said["kept"] += 1
                verdict = archive.verdict(origin)
                assert verdict is not None
                device = next(name for name in arch.STATED if name in verdict.environment.device)
                speeds[to_json(plain(setting))][device][problem.mnk].append(sample.speedup or 0.0)
    for setting, devices in sorted(speeds.items()):
        one = msgspec.json.decode(setting, type=Setting)
        figures = {
            device: {mnk: round(geometric_mean(some), 4) for mnk, some in sorted(shapes.items())}
            for device, shapes in sorted(devices.items())
        }
        print(to_json(Measured(one.family, one.knobs, figures)))
    print(dict(said), file=sys.stderr)


if __name__ == "__main__":
    main([Path(one) for one in sys.argv[1:]])
