"""Kernels whose A is fetched in whole sectors though K is no multiple of 16: a tile holds rows of one parity.

    python experiments/h200/sectors/by_parity.py write FOLDER 4096_4096_4120     # both kinds of each setting, no GPU
    python experiments/h200/sectors/by_parity.py check 40                        # random problems in the emulator
    cudal2 search shapes=4096_4096_4120,1024_8192_8200,3056_984_1768,840_1408_3864 target=sm_90a run=runs/parity search.method=folder search.folder=FOLDER search.kernels=72 search.prior=none search.neighbours=0
    python experiments/h200/sectors/by_parity.py compare runs/parity

Where K is 8 more than a multiple of 16, every second row begins 16 bytes into a sector of 32, and the copy engine is
slow. Rows of one parity lie 2K apart, so all begin alike; odd ones are fetched from 8 elements earlier, B as well, as a
sum does not mind where it begins. Then every second row of B alone crosses sectors: 64 of 384 in a tile of 256×128, not
192. If such a row costs two, a kernel that waits for the copy engine should take 0.78 of the time. Not measured.

The kernels are what the family `warp_specialised` renders, and the same edited, so that nothing else differs. `compare`
prints the fastest of either kind for each problem, over the fastest baseline.
"""  # noqa: E501

import random
import re
import sys
from itertools import product
from pathlib import Path

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.corpus import Knobs
from cudal2.problem import Problem, parse
from cudal2.target import find

FAMILY = next(family for family in corpus.families(find("sm_90a")) if family.name == "warp_specialised")
TILES = ((64, 128), (64, 192), (64, 256), (128, 128), (128, 192), (128, 256), (192, 128), (256, 128))
SCHEDULES, CLUSTERS = ("ping-pong", "cooperative", "staggered"), ("1x1", "2x1", "4x1")
USUAL: Knobs = {
    **{"step": 64, "stages": "fit", "consumers": 2, "producer": "warpgroup", "raster": "column", "grid": "persistent"},
    **{"epilogue": "tma boxes", "blocks": 1, "in_flight": 1, "hint": "none", "accumulate": "f32", "style": "plain"},
}
CHANGES = (
    (
        r"(?=__global__ void)",
        """// A tile holds rows of one parity, which begin alike in a sector; even rows have the first tiles.
constexpr int rows_of(int M, int odd) { return (M + 1 - odd) / 2; }
constexpr int tiles_of(int rows) { return (rows + HEIGHT - 1) / (HEIGHT); }
""",
    ),
    (r"const __grid_constant__ CUtensorMap (map_[ac]),", r"\g<0> const __grid_constant__ CUtensorMap odd_\1,"),
    (
        r"const int tiles_m = [^,;]*",
        "const int even = tiles_of(rows_of(M, 0)), tiles_m = even + tiles_of(rows_of(M, 1))",
    ),
    (r"steps = \(K \+ BK - 1\) / BK", r"\g<0>, shift = K % 16"),
    (
        r"const int m = inside\((.*), BM, M\)",
        r"const int odd = tm >= even, rows = rows_of(M, odd);\ntm -= odd * even;\nconst int m = inside(\1, BM, rows)",
    ),
    (r"const int bytes = bytes_of_stage\(M, N\);\n", ""),
    (r"(full \+ 8 \* stage), bytes\)", r"\1, bytes_of_stage(rows, N))"),
    (r"load_stage\(map_a, map_b,", "load_stage(odd ? odd_map_a : map_a, map_b,"),
    (r"step \* BK(?=[,)])", "step * BK - odd * shift"),
    (r"(write_tile\(acc\[i\], )map_c,(.*), M, N\);", r"\1odd ? odd_map_c : map_c,\2, rows, N);"),
    (r"int box_columns\)", "int box_columns, int every = 1)"),
    (r"pitch\[1\] = \{2 \*", "pitch[1] = {2 * every *"),
    (
        r"CUtensorMap map_a, map_b, map_c;",
        "CUtensorMap map_a, map_b, map_c, odd_map_a, odd_map_c;\n"
        "const int even = rows_of(M, 0), odd = M / 2 > 0 ? M / 2 : 1;",
    ),
    (
        r"describe\(&map_a, A, M, K, .*, 64\);",
        "describe(&map_a, A, even, K, even < BM ? even : BM, 64, 2);\n"
        "if (error == cudaSuccess) error = describe(&odd_map_a, A + K, odd, K, odd < BM ? odd : BM, 64, 2);",
    ),
    (
        r"describe\(&map_c, C, M, N, 64, 64\);",
        "describe(&map_c, C, even, N, 64, 64, 2);\n"
        "if (error == cudaSuccess) error = describe(&odd_map_c, C + N, odd, N, 64, 64, 2);",
    ),
    (
        r"int blocks = \(M \+ (ROWS|BM) - 1\) / (ROWS|BM)",
        "int blocks = (tiles_of(rows_of(M, 0)) + tiles_of(rows_of(M, 1)))",
    ),
    (r"map_a, map_b, map_c, M, N, K\)", "map_a, odd_map_a, map_b, map_c, odd_map_c, M, N, K)"),
)
"""What is edited: a pattern, and what takes its place."""


def by_parity(source: str) -> str:
    """Such a source with tiles of one parity; ValueError where a pattern is not in it."""
    for pattern, text in CHANGES:
        source, times = re.subn(pattern, text, source)
        if not times:
            raise ValueError(f"the source has no {pattern}")
    return source.replace("HEIGHT", "CLUSTER_M * BM" if "CLUSTER_M" in source else "BM")


def settings(problem: Problem) -> list[Knobs]:
    wide = product(TILES, SCHEDULES, CLUSTERS)
    some = [USUAL | {"tile_m": m, "tile_n": n, "schedule": way, "cluster": size} for (m, n), way, size in wide]
    ordered = [{knob: knobs[knob] for knob in FAMILY.knobs} for knobs in some]
    return [knobs for knobs in ordered if not corpus.refusal(FAMILY, knobs, problem)]


def write(folder: Path, problem: Problem) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for knobs in settings(problem):
        name = "{tile_m}x{tile_n}-{schedule}-{cluster}".format(**knobs)
        source = corpus.render(FAMILY, knobs, problem)
        (folder / f"{name}-all.cu").write_text(source)
        (folder / f"{name}-parity.cu").write_text(by_parity(source))


def compare(run: Path) -> None:
    with Archive(run / "archive.sqlite") as archive:
        samples = [sample for sample in archive.samples() if sample.speedup]
    for problem in dict.fromkeys(sample.problem for sample in samples):
        of = [(sample.speedup or 0.0, sample.origin.prompt) for sample in samples if sample.problem == problem]
        best = (
            max((one for one in of if kind in one[1]), default=(0.0, "none")) for kind in ("1x1-all", "all", "parity")
        )
        print(problem.mnk, *(f"{speed:.3f} {name}" for speed, name in best), sep="  ")


def check(count: int) -> None:
    """Raises AssertionError where a kernel is wrong in the tests' emulator."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
    from families import hopper

    rng = random.Random(0)
    for number in range(count):
        knobs = rng.choice(settings(parse("256_256_256")))
        m, n = (rng.randint(1, 3 * int(knobs[tile])) for tile in ("tile_m", "tile_n"))
        problem = Problem(m, 8 * (n // 8 + 1), 8 * rng.randint(1, 60))
        library = hopper.build(by_parity(corpus.render(FAMILY, knobs, problem)))
        wrong = hopper.run(library, problem, seed=number, processors=rng.randint(1, 6))
        assert not wrong, (problem.name, knobs, wrong)
        print(problem.name, knobs["tile_m"], knobs["tile_n"], knobs["schedule"], knobs["cluster"], "right", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder, name]:
            write(Path(folder), parse(name))
        case ["check", count]:
            check(int(count))
        case ["compare", run]:
            compare(Path(run))
