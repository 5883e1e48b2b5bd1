"""What the parts of a product of 32 or 64 rows take, beside known settings and a kernel that only reads.

    python experiments/h200/few_rows/parts.py measure OUT.jsonl       # a GPU of Hopper's; a minute with 16 cores
    python experiments/h200/few_rows/parts.py table experiments/h200/few_rows/parts.jsonl.xz

parts.cu is compiled with loads, products and stores, and without some of them, and each is timed as explore.py does: in
turn with the others, from CUDA graphs over rotating buffers, the median of seven rounds.
"""

import json
import lzma
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SHARED, SLACK = 232448, 8192
"""Bytes of shared memory of a block, and those behind the ring that a last tile of 64 rows may read into."""
WEIGHTS = {(5120, 3072): 40, (5120, 5120): 40, (4096, 4096): 32, (2048, 8192): 16, (8192, 8192): 64, (28672, 4096): 56}
"""N and K, and how many rows of the weight a block takes."""
Way = tuple[int, int, int, int]
"""LOADS, STEP, GROUPS and LOADERS."""
WAYS: tuple[Way, ...] = (
    *((0, 128, 1, 1), (0, 128, 2, 1), (0, 256, 2, 1)),
    *((1, 256, 2, 2), (1, 256, 4, 4), (1, 512, 2, 2), (1, 512, 4, 4)),
)
READING: tuple[tuple[Way, int], ...] = (
    *(((0, 128, 1, 1), 99), ((0, 256, 1, 1), 99), ((1, 256, 1, 2), 99), ((1, 256, 1, 4), 99), ((1, 512, 1, 2), 99)),
    *(((1, 512, 1, 4), 99), ((1, 1024, 1, 2), 99), ((0, 128, 1, 1), 3), ((1, 256, 1, 2), 2)),
)
"""How the weight alone is read, and the most stages."""
CLUSTERS = {1: 132, 2: 66, 4: 32}
"""How many clusters of so many blocks may be launched."""
READ = (
    (256, 4, 4),
    (256, 8, 4),
    (256, 16, 2),
    (512, 8, 2),
    (512, 16, 1),
    (1024, 4, 1),
    (1024, 8, 1),
    (1024, 4, 2),
    (256, 8, 8),
)
"""Threads, loads on their way and blocks a multiprocessor of the kernel that only reads."""
KNOWN, ROUNDS = 8, 7
"""Known settings of each shape, and rounds."""
Variant = dict[str, int]


def ring(one: Variant) -> int:
    """How many stages fit; none where a last tile would read beyond what is there."""
    rows, step, few, tall = -(-one["ROWS"] // 8) * 8, one["STEP"], one["FEW"], one["TALL"]
    pitch = 2 * step + 16
    weight = -(-rows * pitch // 1024) * 1024 if one["LOADS"] else step // 64 * rows * 128
    stage, sums = weight + step // 64 * few * 128, few * (rows * tall + 4) * 4
    if one["LOADS"] and 64 * tall * pitch > stage + SLACK:
        return 0
    return (SHARED - 1024 - SLACK - sums - 512) // stage


def variants(few: int, n: int, rows: int) -> list[Variant]:
    whole, found = {"FEW": few, "WITH_X": 1, "WITH_PRODUCTS": 1, "WITH_STORES": 1}, list[Variant]()

    def add(way: Way, most: int = 99, **more: int) -> None:
        one = whole | dict(zip(("LOADS", "STEP", "GROUPS", "LOADERS"), way)) | more
        if (stages := min(ring(one), most)) > 1:
            found.append(one | {"RING": stages})

    for cluster in CLUSTERS:
        tile = {"ROWS": rows * cluster, "TALL": -(-rows * cluster // 64), "CLUSTER": cluster}
        clusters = -(-n // tile["ROWS"])
        if tile["ROWS"] > 128 or (cluster > 1 and clusters > CLUSTERS[cluster]):
            continue
        for way in WAYS:
            add(way, **tile)
    tile = {"ROWS": rows, "TALL": 1, "CLUSTER": 1}
    for way in (WAYS[0], WAYS[3]):
        for left in (["WITH_X"], ["WITH_PRODUCTS"], ["WITH_STORES"], ["WITH_PRODUCTS", "WITH_STORES"]):
            add(way, **tile, **dict.fromkeys(left, 0))
    nothing = tile | {"WITH_X": 0, "WITH_PRODUCTS": 0, "WITH_STORES": 0}
    for way, most in READING:
        add(way, most, **nothing)
    return found + [{"LOADS": 9, "ROWS": threads, "STEP": loads, "RING": blocks} for threads, loads, blocks in READ]


def build(one: Variant, folder: Path) -> Path:
    library = folder / ("-".join(f"{name}{value}" for name, value in sorted(one.items())) + ".so")
    if not library.exists():
        flags = [f"-D{name}={value}" for name, value in one.items()]
        code = ["-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run(["nvcc", *code, *flags, str(HERE / "parts.cu"), "-o", str(library)], check=True)
    return library


def measure(out: Path) -> None:
    sys.path.insert(0, str(HERE.parent))
    import explore

    from cudal2.problem import parse
    from cudal2.search import prior
    from cudal2.worker.cache import Cache
    from cudal2.worker.cuda.vendor import tuning
    from cudal2.worker.cuda.vendor.baselines import Vendor

    folder = out.with_suffix(".kernels")
    folder.mkdir(parents=True, exist_ok=True)
    todo = {(few, n, k): variants(few, n, rows) for (n, k), rows in WEIGHTS.items() for few in (32, 64)}
    with ThreadPoolExecutor() as pool:
        every = {json.dumps(one): one for some in todo.values() for one in some}
        list(pool.map(lambda one: build(one, folder), every.values()))
    families = list(explore.FAMILIES.values())
    settings = [
        {"family": one.family, "knobs": one.knobs, "shapes": [f"{few}_{n}_{k}"]}
        for few, n, k in todo
        for one in prior.known_settings(explore.TARGET, parse(f"{few}_{n}_{k}"), families)[:KNOWN]
    ]
    built = explore.libraries(folder / "families", settings)
    vendor = Vendor(0, Cache(folder / "cache"))
    for (few, n, k), some in todo.items():
        problem = parse(f"{few}_{n}_{k}")
        clock = vendor.clock
        sets, reference, workspace = explore.operands(problem)
        theirs, window = explore.beside(vendor, problem, sets)
        graphs = {"vendor": theirs}
        what: dict[str, dict] = {"vendor": {"kind": "vendor"}}
        kinds = [(build(one, folder), {"kind": "read" if one["LOADS"] == 9 else "probe", **one}) for one in some]
        for key, setting in explore.fitting(built, problem).items():
            known = {"kind": "family", "family": setting["family"], "knobs": setting["knobs"]}
            kinds.append((folder / "families" / f"{key}.so", known))
        for library, kind in kinds:
            call = explore.launcher(library, problem, workspace)
            result = clock.run(call, sets["tn"][0])
            what[library.name] = kind | {"error": float(tuning.difference(result, reference))}
            graphs[library.name] = clock.graph(call, sets["tn"][window])
        rounds = defaultdict[str, list[float]](list)
        for _ in range(ROUNDS + 1):
            for name, graph in graphs.items():
                rounds[name].append(clock.replay(graph) / window.stop * 1e6)
        with out.open("a") as file:
            for name, found in rounds.items():
                us = round(statistics.median(found[1:]), 3)
                file.write(json.dumps({"problem": problem.mnk, "us": us, **what[name]}) + "\n")


def table(lines: Sequence[dict]) -> str:
    """Microseconds: by box of the copy engine, one warpgroup, steps of 128, with more and more of the product."""
    stages = (("boxes read", (0, 0, 0)), ("and x", (1, 0, 0)), ("stores", (1, 0, 1)), ("products", (1, 1, 0)))
    head = ["read", *(name for name, _ in stages), "all", "best of all", "rows copied", "known", "vendor"]
    text = [f"{'':<14}" + "".join(f"{name:>13}" for name in head)]
    by_problem = defaultdict[str, list[dict]](list)
    for line in lines:
        by_problem[line["problem"]].append(line)

    def least(some: Sequence[dict], **want: object) -> str:
        found = [line["us"] for line in some if all(line.get(name) == value for name, value in want.items())]
        return f"{min(found):13.2f}" if found else f"{'':>13}"

    for problem, some in by_problem.items():
        plain = [
            line for line in some if line.get("STEP") == 128 and line.get("GROUPS") == 1 and line.get("CLUSTER") == 1
        ]
        plain = [line for line in plain if line["RING"] == max(one["RING"] for one in plain)]
        cells = [least(some, kind="read")]
        cells += [least(plain, LOADS=0, WITH_X=x, WITH_PRODUCTS=mma, WITH_STORES=epi) for _, (x, mma, epi) in stages]
        cells += [least(plain, LOADS=0, WITH_X=1, WITH_PRODUCTS=1, WITH_STORES=1)]
        cells += [least(some, kind="probe", LOADS=load, WITH_X=1, WITH_PRODUCTS=1, WITH_STORES=1) for load in (0, 1)]
        text.append(f"{problem:<14}" + "".join(cells) + least(some, kind="family") + least(some, kind="vendor"))
    return "\n".join(text)


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(Path(sys.argv[2]))
    else:
        with lzma.open(sys.argv[2], "rt") as file:
            print(table([json.loads(line) for line in file]))
