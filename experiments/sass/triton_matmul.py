"""A matmul that Triton compiled, as a folder that the judge of edits takes: `kernel.cubin` and `launch.json`.

    TRITON_PTXAS_PATH=$(command -v ptxas) python experiments/sass/triton_matmul.py 1024_1024_1024 -o triton

Needs triton (3.6), no GPU. For compute capability 9.0 Triton turns `tl.dot` into wgmma where four warps or a multiple
share a tile of a multiple of 64 rows; with one or two warps, or 32 rows, into mma.sync with operands from shared memory
that cp.async fills. The ptxas that Triton 3.6 brings writes cubins of which nvdisasm 13 tells no registers, so that of
CUDA 13 is named.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


@triton.jit
def matmul(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """C [M,N] = A [M,K] · B, stored [N,K]; a block a tile, tiles in groups of GROUP rows of tiles for the L2."""
    tile = tl.program_id(0)
    down: tl.constexpr = M // ROWS
    across: tl.constexpr = N // COLUMNS
    group = tile // (GROUP * across)
    height = min(down - group * GROUP, GROUP)
    row = group * GROUP + tile % (GROUP * across) % height
    column = tile % (GROUP * across) // height
    rows = row * ROWS + tl.arange(0, ROWS)
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    left = a + rows[:, None] * K + depth[None, :]
    right = b + columns[None, :] * K + depth[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for _ in range(0, K, DEPTH):
        sums = tl.dot(tl.load(left), tl.load(right), sums)
        left += DEPTH
        right += DEPTH
    tl.store(c + rows[:, None] * N + columns[None, :], sums.to(tl.float16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", help="M_N_K, multiples of the tile; B is stored as its transpose (tn)")
    parser.add_argument("--tile", default="64_128_32", help="rows, columns and depth of a tile")
    parser.add_argument("--warps", type=int, default=2)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    if not os.environ.get("TRITON_PTXAS_PATH") and (ptxas := shutil.which("ptxas")):
        os.environ["TRITON_PTXAS_PATH"] = ptxas
    m, n, k = map(int, arguments.problem.split("_")[:3])
    rows, columns, depth = map(int, arguments.tile.split("_"))
    if m % rows or n % columns or k % depth:
        sys.exit(f"{arguments.problem} is no multiple of a tile of {arguments.tile}; choose another --tile")
    constants = {"M": m, "N": n, "K": k, "ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "GROUP": arguments.group}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(3)}
    source = triton.compiler.ASTSource(matmul, dict.fromkeys("abc", "*fp16"), constants, aligned)
    options = {"num_warps": arguments.warps, "num_stages": arguments.stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    pointers = [{"type": "pointer", "to": name} for name in "ABC"]
    # Triton adds two pointers to scratch memory, which a kernel that asks for none is given as null.
    assert not made.metadata.global_scratch_size and not made.metadata.profile_scratch_size
    launch = {
        "problem": f"{m}_{n}_{k}_tn_f32",
        "function": made.metadata.name,
        "grid": [m // rows * (n // columns), 1, 1],
        "block": [32 * arguments.warps, 1, 1],
        "shared": made.metadata.shared,
        "parameters": [*pointers, *[{"type": "bytes", "hex": "00" * 8}] * 2],
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "kernel.cubin").write_bytes(made.asm["cubin"])
    (arguments.output / "launch.json").write_text(json.dumps(launch, indent=1) + "\n")
    found = [name for name in ("wgmma", "mma.sync", "cp.async", "ldmatrix") if name in made.asm["ptx"]]
    print(f"{arguments.output}: {', '.join(found)}; {made.metadata.shared} bytes of shared memory")


if __name__ == "__main__":
    main()
