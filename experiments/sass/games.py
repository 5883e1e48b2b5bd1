"""Games over many kernels: which search finds how much, with as many measurements each.

    python experiments/sass/games.py draw > settings.jsonl                    # no GPU: settings of each family to try
    python experiments/h200/explore.py settings.jsonl 512_512_512,1024_1024_1024,4096_4096_4096 tuned.jsonl
    python experiments/sass/games.py make games --tuned tuned.jsonl     # no GPU: sources of families, and of the policy
    python experiments/sass/triton_matmul.py 1024_1024_1024 --tile 64_128_32 --warps 2 -o games/triton-1024_1024_1024
    python experiments/sass/games.py play games judge=gpu search.measurements=500 --seconds 540 -o games.json

`make` writes one source for each family and problem, with the fastest of the knobs that `explore.py` tried there, else
those known to be fast nearest to it, and two of the first samples of the policy that ships whose products are
mma.sync's. `play` compares the searches on each, and on somebody else's cubin in a folder NAME-M_N_K, until the seconds
are over; the same command goes on.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cudal2 import corpus
from cudal2.config import PolicyConfig, PromptConfig, SassConfig, load
from cudal2.policy import learnt, prompts, writer
from cudal2.policy import model as policy
from cudal2.problem import parse
from cudal2.sass import searches
from cudal2.sass.polish import run, shapes, subject
from cudal2.search import prior, settings
from cudal2.search.proposer import Setting
from cudal2.target import find
from cudal2.worker.cuda import foreign

TARGET = "sm_90a"
FAMILIES = ("multistage", "skinny", "small", "splitk", "streamk", "wmma", "cute", "warp_specialised")
"""All whose products are mma.sync's, and one of wgmma."""
SIZES = ("512_512_512", "1024_1024_1024", "4096_4096_4096")
DRAWS = {"cute": 8}
"""Settings that are drawn of a family and a size: a CuTe kernel takes nvcc half a minute; of the others MANY."""
MANY = 18
WRITTEN, SAMPLES = ("512_128_512", "1024_128_256"), 16
"""Problems that the policy writes for, of those that results are reported on, so that no training has seen them; and
how many samples it is given to use mma.sync."""


def draw() -> Iterator[Setting]:
    """Settings of every family of mma.sync's, drawn for each size."""
    for size in SIZES:
        problem = parse(size, "tn", "f32")
        for family in corpus.families(find(TARGET)):
            if family.name in FAMILIES[:-1]:
                rng = random.Random(f"{family.name} {size}")
                drawn = (settings.draw(problem, family, rng) for _ in range(DRAWS.get(family.name, MANY) // len(SIZES)))
                yield from filter(None, drawn)


def source(family: str, size: str, tuned: Path | None = None) -> tuple[str, str]:
    """A family's source for a problem, and where its knobs are from; ValueError where it has none."""
    problem = parse(size, "tn", "f32")
    families = [one for one in corpus.families(find(TARGET)) if one.name == family]
    found = [("tuned", fastest(tuned, family, size))] if tuned else []
    found.append(("known", next(iter(prior.known_settings(TARGET, problem, families)), None)))
    found.append(("drawn", settings.draw(problem, families[0], random.Random(f"{family} {size}"))))
    for origin, setting in found:
        text = settings.rendered(setting, problem, families) if setting else None
        if setting and text:
            return text, f"{origin} {setting.knobs}"
    raise ValueError(f"{family} has no kernel for {size}")


def fastest(tuned: Path, family: str, size: str) -> Setting | None:
    """The fastest setting of a family on a problem, among the rows that `explore.py` wrote."""
    rows = [json.loads(line) for line in tuned.read_text().splitlines()]
    those = [row for row in rows if (row["problem"], row["family"], row["said"]) == (size, family, "ok")]
    best = min(those, key=lambda row: row["us"], default=None)
    return Setting(family, best["knobs"]) if best else None


def make(folder: Path, sizes: list[str], tuned: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        for family in FAMILIES:
            try:
                text, knobs = source(family, size, tuned)
            except ValueError as error:
                print(error)
                continue
            (folder / f"{family}-{size}.cu").write_text(text)
            print(f"{family} {size}: {knobs}")
    for size in WRITTEN:
        (folder / f"policy-{size}.cu").write_text(written(size))
        print(f"policy {size}")


def written(size: str) -> str:
    """The first of SAMPLES of the policy that ships whose products are mma.sync's; ValueError where none is."""
    config, target = PolicyConfig(path=policy.locate("", TARGET), max_new_tokens=576, temperature=0.5), find(TARGET)
    prompt = PromptConfig(template=learnt.stated(config.path))
    asked = [prompts.render(prompt, False, parse(size, "tn", "f32"), target)] * SAMPLES
    for text in writer.write(*policy.load(config), asked, config, target, seed=0):
        if "mma.sync" in text:
            return text
    raise ValueError(f"the policy uses no mma.sync for {size}")


def play(
    folder: Path,
    runs: str,
    overrides: list[str],
    methods: tuple[str, ...],
    seconds: float,
    share: tuple[int, int],
    out: Path,
) -> None:
    started, rows = time.monotonic(), []
    those = [*folder.glob("*.cu"), *(path.parent for path in folder.glob(f"*/{foreign.LAUNCH}"))]
    paths = sorted(those, key=lambda path: path.stem.rpartition("-")[::-1])
    for path in paths[share[0] :: share[1]]:
        if time.monotonic() - started > seconds:
            print(f"{seconds:.0f} s are over; the same command goes on")
            break
        name, _, size = path.stem.rpartition("-")
        config = load("sass", [f"run={folder}/{runs}/{path.stem}", f"problem={size}", *overrides], SassConfig)
        try:
            what = subject.find(path, config)
            found, floor = run.compare(what, config, methods)
        except ValueError as error:  # this kernel cannot be played; the others can
            print(f"{name} {size}: {error}")
            continue
        print(
            f"{name} {size}, {time.monotonic() - started:.0f} s\n{shapes.finished(what, config, found, floor)}",
            flush=True,
        )
        rows.append({"kernel": name, "problem": size, "judge": config.judge, "floor": floor, "found": found})
        out.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("draw", "make", "play"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("overrides", nargs="*", help="of make: problems M_N_K; of play: KEY=VALUE of conf/sass.yaml")
    parser.add_argument("--tuned", type=Path, help="of make: what explore.py wrote")
    parser.add_argument("--methods", default=",".join(searches.METHODS))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--share", default="0/1", help="I/N: every N-th kernel from the I-th on; the others elsewhere")
    parser.add_argument("--runs", default="runs", help="where in FOLDER: other keys want another place")
    parser.add_argument("-o", dest="out", type=Path, default=Path("games.json"))
    arguments, rest = parser.parse_known_args()
    given = [*arguments.overrides, *rest]
    if arguments.folder is None and arguments.what != "draw":
        parser.error(f"{arguments.what} needs the games' folder")
    if arguments.what == "draw":
        print(*(json.dumps({"family": one.family, "knobs": one.knobs}) for one in draw()), sep="\n")
    elif arguments.what == "make":
        make(arguments.folder, given or list(SIZES), arguments.tuned)
    else:
        first, _, step = arguments.share.partition("/")
        share, methods = (int(first), int(step)), tuple(arguments.methods.split(","))
        play(arguments.folder, arguments.runs, given, methods, arguments.seconds, share, arguments.out)


if __name__ == "__main__":
    main()
