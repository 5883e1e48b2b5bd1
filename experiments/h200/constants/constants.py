"""What every family states and no knob varies: the same kernels with each such constant changed, beside one another.

    python experiments/h200/constants/constants.py propose OUT [EDIT…]        # at d24b2612; these alone, as they begin
    python experiments/h200/explore.py OUT/settings.jsonl $(cat OUT/shapes.txt) OUT/out.jsonl
    python experiments/h200/constants/constants.py > experiments/h200/constants/constants.txt

`propose` draws shapes that are kept for training, a few of each kind, and takes the first known settings of each; every
edit of EDITS is made in every source that has what it changes. constants.jsonl.xz holds what explore.py said, with the
`trial` of each line: `full` of before the L2 was emptied ahead of each kernel's turn, `emptied` since (some edits).
The last command prints by kind how much faster the changed kernels are than the same ones as they were: geometric means
over settings, then over shapes, with 95% intervals over shapes.
"""

import json
import lzma
import math
import random
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np

from cudal2 import corpus
from cudal2.problem import Problem, grid, off_lattice, parse
from cudal2.search import prior
from cudal2.search.known import shipped_settings
from cudal2.split import unseen

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
sys.path.insert(0, str(Path(__file__).parents[1] / "learning"))
from explored import BY_NAME, FAMILIES, TARGET
from first import interval

RECORD = Path(__file__).with_name("constants.jsonl.xz")
Pairs = list[tuple[str, str]]

KNOWN, EACH = 3, 6
"""Known settings of each shape, and shapes of each kind."""
ROWS = {"1 to 16 rows": (1, 16), "17 to 64 rows": (17, 64), "65 to 1,024 rows": (65, 1024), "more": (1025, 16384)}
LARGE = 5e10
"""FLOP; beyond it a card slows itself down."""

LOAD = (
    r"(__device__ __forceinline__ void )(\w+)(\(const CUtensorMap& map, uint32_t to, uint32_t bar, int x, int y"
    r'%s\) \{\n    asm volatile\("cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile'
    r'\.mbarrier::complete_tx::bytes%s)("\n +" \[%%0\], \[%%1, \{ %%3, %%4\}\], \[%%2\]%s)'
    r'(;"\n +::"r"\(to\), "l"\(&map\), "r"\(bar\), "r"\(x\), "r"\(y\)%s)( : "memory"\);\n\})'
)
LOADS = (
    (LOAD % ("", "", "", ""), "%5"),
    (LOAD % (r",\n    uint16_t mask", r"\.multicast::cluster", ", %5", r', "h"\(mask\)'), "%6"),
)
"""How the copy engine is asked for a box, for one block or for several; the operand that a cache hint would be."""
FIRST, LAST = "0x12F0000000000000", "0x14F0000000000000"
"""The policies evict_first and evict_last for all of what is read, as CUTLASS writes them."""
SET = r"error = cudaFuncSetAttribute\((\w+), cudaFuncAttributeMaxDynamicSharedMemorySize, \w+\);"


def hinted(matrix: str, policy: str) -> Pairs:
    """Loads of one matrix with a hint how long the L2 should keep what they read."""
    hint = rf'\g<0>\n\1\2_{matrix}\3.L2::cache_hint\4, {{}}\5, "l"({policy}ull)\6'
    calls = [(rf"(\w+)\(map_{matrix}, to", rf"\1_{matrix}(map_{matrix}, to")]
    return [(load, hint.format(operand)) for load, operand in LOADS] + calls


def attribute(name: str, value: str) -> Pairs:
    """One more attribute of the kernel."""
    return [(SET, rf"\g<0>\n    if (error == cudaSuccess) error = cudaFuncSetAttribute(\1, {name}, {value});")]


SCHEDULING = "cudaFuncAttributeClusterSchedulingPolicyPreference"
EDITS: dict[str, Pairs] = {
    "B: evict first": hinted("b", FIRST),
    "A: evict first": hinted("a", FIRST),
    "A: evict last": hinted("a", LAST),
    "B: evict last": hinted("b", LAST),
    "clusters: spread": attribute(SCHEDULING, "cudaClusterSchedulingPolicySpread"),
    "clusters: load balancing": attribute(SCHEDULING, "cudaClusterSchedulingPolicyLoadBalancing"),
    "all memory shared": attribute("cudaFuncAttributePreferredSharedMemoryCarveout", "100"),
    "barriers: test_wait": [(r"mbarrier\.try_wait", "mbarrier.test_wait")],
    "barriers: long waits": [(r"(mbarrier\.try_wait[^;]*%2);", r"\1, 0x989680;")],
    "no prefetched descriptors": [(r"\n +prefetch\(map_\w\);", "")],
    "K back and forth": [(r"(\n +)step \* BK", r"\1(tile / stride % 2 ? steps - 1 - step : step) * BK")],
    "plain loads: 256 bytes": [(r"(no_allocate\.[\w:.]*L2::)128B", r"\g<1>256B")],
    "plain loads: 64 bytes": [(r"(no_allocate\.[\w:.]*L2::)128B", r"\g<1>64B")],
    "plain loads: no more": [(r"(no_allocate[\w:.]*)\.L2::128B", r"\1")],
    "plain loads: by the L1": [(r"\.L1::no_allocate", "")],
    "cp.async: 256 bytes": [(r"(cp\.async\.[\w:.]*L2::)128B", r"\g<1>256B")],
    "cp.async: no more": [(r"(cp\.async\.[\w:.]*)\.L2::128B", r"\1")],
}
NEEDS = {"clusters": r"__cluster_dims__", "K": r"tile \+= stride", "all memory": r"^(?![\s\S]*SharedMemoryCarveout)"}
"""What else a source must hold for the edits that begin so."""


def edited(source: str, name: str) -> str:
    """The source with that edit; the same text where it has nothing to change."""
    if any(name.startswith(start) and not re.search(needed, source) for start, needed in NEEDS.items()):
        return source
    for pattern, instead in EDITS[name]:
        source = re.sub(pattern, instead, source)
    return source


def kind(problem: Problem) -> str:
    rows = next(name for name, (least, most) in ROWS.items() if least <= problem.m <= most)
    begin = "lines" if problem.k % 64 == 0 else "off the lattice"
    return f"{rows}, {'large' if problem.flop > LARGE else begin}"


def propose(out: Path, *only: str) -> None:
    rng = random.Random(7)
    known = [one for one in shipped_settings(TARGET) if not unseen(one)]
    sizes = {*grid(), *off_lattice(1000, 4001), *known}
    by_kind = defaultdict[str, list[Problem]](list)
    for one in sorted(sizes, key=lambda one: one.mnk):
        if one == Problem(one.m, one.n, one.k) and not unseen(one) and one.flop < 3e12:
            by_kind[kind(one)].append(one)
    shapes = [one for _, some in sorted(by_kind.items()) for one in rng.sample(some, min(EACH, len(some)))]
    wanted = defaultdict[str, list[str]](list)
    for problem in shapes:
        for setting in prior.liked_settings(TARGET, problem, FAMILIES)[:KNOWN]:
            source = corpus.render(BY_NAME[setting.family], setting.knobs, problem)
            plain = {"family": setting.family, "knobs": setting.knobs}
            wanted[json.dumps(plain)].append(problem.mnk)
            for name, pairs in EDITS.items():
                if name.startswith(only or ("",)) and edited(source, name) != source:
                    wanted[json.dumps(plain | {"edit": {"name": name, "pairs": pairs}})].append(problem.mnk)
    out.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(json.loads(one) | {"shapes": where}) for one, where in wanted.items())
    (out / "settings.jsonl").write_text("\n".join(lines) + "\n")
    (out / "shapes.txt").write_text(",".join(one.mnk for one in shapes))
    print(f"{len(shapes)} shapes, {len(wanted)} sources, {sum(map(len, wanted.values()))} pairs")


def main() -> None:
    lines = [json.loads(line) for line in lzma.decompress(RECORD.read_bytes()).splitlines()]
    usual = {setting(one): one["us"] for one in lines if one["said"] == "ok" and "edit" not in one}
    found = defaultdict[tuple[str, str, str], dict[str, list[float]]](lambda: defaultdict(list))
    for one in lines:
        if "edit" in one and one["said"] == "ok" and (before := usual.get(setting(one))):
            for name in (kind(parse(one["problem"])), "all"):
                found[one["trial"], one["edit"], name][one["problem"]].append(math.log(before / one["us"]))
    for (trial, edit, name), of_shape in sorted(found.items()):
        means = np.array([mean(some) for some in of_shape.values()])
        print(f"{trial:9s}{edit:28s}{name:34s}{len(of_shape):>4d}  {interval(means)}")
    print(f"not right: {sum(one['said'] in ('wrong', 'refused') for one in lines)} of {len(lines)}")


def setting(line: dict) -> tuple[str, str, str]:
    """What was measured on what, in which trial, but for the edit."""
    return line["trial"], line["problem"], json.dumps([line["family"], line["knobs"]])


if __name__ == "__main__":
    propose(Path(sys.argv[2]), *sys.argv[3:]) if sys.argv[1:2] == ["propose"] else main()
