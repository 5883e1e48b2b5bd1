"""Kernels for 65 to 256 rows of any number: the weights' rows take A's place, so that a tile is as wide as A is high.

    python experiments/h200/edits/swapped.py write FOLDER 136_4096_4096        # beside unedited ones; no GPU
    python experiments/h200/edits/swapped.py check 40                          # random problems in the emulator
    cudal2 search shapes=136_4096_4096,100_5120_5120 target=sm_90a run=runs/swapped search.method=folder search.folder=FOLDER search.kernels=110 search.prior=none search.neighbours=0
    python experiments/h200/edits/swapped.py compare runs/swapped

wgmma multiplies 64 rows at a time by any multiple of eight columns. 136 rows take three tiles of 64, of which 29% is
nothing; as columns they take one tile of 144. C comes out transposed, and leaves through shared memory by
`stmatrix.trans`, as rows of 64 neighbouring outputs. Predicted where tensor cores or the L2 are the limit: 0.75 of the
time at 136 rows, 0.83 at 160. Not measured.

The kernels are those of `warp_specialised`, edited; `compare` prints the fastest of these without clusters, with them,
and of the edited ones, over the fastest baseline.
"""  # noqa: E501

from itertools import product

from edits import FAMILY, SCHEDULES, Edit, able, edited, main
from msgspec.structs import replace

from cudal2.corpus import Knobs
from cudal2.problem import Problem

WIDER = replace(FAMILY, rules=tuple(rule for rule in FAMILY.rules if "64 columns at a time" not in rule.because))
"""C of any width is staged here; what the family stages is a multiple of 64 wide."""
HEIGHTS, WIDTHS, CLUSTERS = (64, 128), (80, 96, 112, 128, 144, 160, 176, 192, 224, 256), ("1x1", "2x1")
WRITE = r"""// 64 outputs of up to BN rows of C: turned over on the way to shared memory, they leave by TMA as one box.
__device__ __forceinline__ void write_tile(float (&d)[BN / 2], const CUtensorMap& map_c, uint32_t staging,
    int& turn, int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    if (row >= M) return;
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(4 + (int)threadIdx.x / 128) : "memory");
#pragma unroll
    for (int j = 0; j < BN / 8; j += 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], { %1, %2, %3, %4};"
                     ::"r"(staging + (j * 8 + lane / 16 * 8 + lane % 8) * 128 +
                           ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16),
                     "r"(pack(d, j, 0)), "r"(pack(d, j, 1)),
                     "r"(pack(d, j + 1, 0)), "r"(pack(d, j + 1, 1)) : "memory");
    // What ordinary stores wrote must be visible to the copy engine before it is told to read.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(4 + (int)threadIdx.x / 128) : "memory");
    if (threadIdx.x % 128 == 0) tma_store(map_c, staging, row, column);
}

__global__ void"""
CHANGES = (
    (r"STAGING = CONSUMERS \* 4 \* 2 \* 2048", "STAGING = CONSUMERS * BN * 128"),
    (r"group \* 16384", "group * BN * 128"),
    (r"// 64 rows of sums become halves[\s\S]*?\n}\n\n__global__ void", WRITE.replace("\\", r"\\")),
    (r"describe\(&map_c, C, M, N, 64, 64\)", "describe(&map_c, C, N, M, BN, 64)"),
    (r"describe\(&map_a, A, M", "describe(&map_a, B, M"),
    (r"describe\(&map_b, B, N", "describe(&map_b, A, N"),
    (r"(hgemm\(.*?)int M, int N,", r"\1int N, int M,"),
)
"""What is edited: inside the kernel M counts the weights' rows, and N those of A."""


def settings(problem: Problem) -> list[Knobs]:
    wide = product(HEIGHTS, WIDTHS, SCHEDULES, CLUSTERS)
    some = [{"tile_m": m, "tile_n": n, "schedule": schedule, "cluster": size} for m, n, schedule, size in wide]
    # C of any width is staged here, what the family stages is a multiple of 64 wide.
    return [
        knobs | {"epilogue": "tma boxes"} for knobs in able([one | {"epilogue": "direct"} for one in some], problem)
    ]


def make(source: str) -> str:
    return edited(source, CHANGES)


if __name__ == "__main__":
    main(Edit("swapped", settings, make, WIDER))
