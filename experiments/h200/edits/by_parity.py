"""Kernels whose A is fetched in whole sectors though K is no multiple of 16: a tile holds rows of one parity.

    python experiments/h200/edits/by_parity.py write FOLDER 4096_4096_4120     # beside unedited ones; no GPU
    python experiments/h200/edits/by_parity.py check 40                        # random problems in the emulator
    cudal2 search shapes=4096_4096_4120,1024_8192_8200,3056_984_1768,840_1408_3864 target=sm_90a run=runs/parity search.method=folder search.folder=FOLDER search.kernels=72 search.prior=none search.neighbours=0
    python experiments/h200/edits/by_parity.py compare runs/parity

Where K is 8 more than a multiple of 16, every second row begins 16 bytes into a sector of 32, and the copy engine is
slow. Rows of one parity lie 2K apart, so all begin alike; odd ones are fetched from 8 elements earlier, B as well, as a
sum does not mind where it begins. Then every second row of B alone crosses sectors: 64 of 384 in a tile of 256×128, not
192. If such a row costs two, a kernel that waits for the copy engine should take 0.78 of the time. Not measured.

The kernels are those of `warp_specialised`, edited; `compare` prints the fastest of these without clusters, with them,
and of the edited ones, over the fastest baseline.
"""  # noqa: E501

from edits import Edit, edited, main, usual

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


def make(source: str) -> str:
    return edited(source, CHANGES).replace("HEIGHT", "CLUSTER_M * BM" if "CLUSTER_M" in source else "BM")


if __name__ == "__main__":
    main(Edit("parity", usual, make))
