"""How near the read floor the layers kept apart are: python experiments/h200/layers/floors.py

The floor is the time of a kernel that only reads a layer's operands (`cudal2 bench floor`, floor-apart.txt). The share
of a baseline is floor over its time; that of a kernel is its speedup (apart-29-november.csv, another H200) times this.
"""

import math
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "campaign"))
from shares import fastest, mean  # noqa: E402


def main() -> None:
    shares: dict[tuple[int, int, int], tuple[float, float]] = {}
    for line in (HERE / "floor-apart.txt").read_text().splitlines()[1:]:
        name, _, _, floor, *_, share = line.split()
        shape = tuple(int(size) for size in name.split("_")[:3])
        shares[shape] = max(shares.get(shape, (0.0, 0.0)), (float(share), float(floor)))
    ours = {shape: float(row["speedup"]) for shape, row in fastest(HERE / "apart-29-november.csv").items()}
    print("  m     n     k   floor, µs   room over the fastest baseline   ours   ours, share of the floor")
    for (m, n, k), (share, floor) in sorted(shares.items()):
        speed = ours[m, n, k]
        print(f"{m:3d} {n:5d} {k:5d} {floor:11.2f} {1 / share:32.3f} {speed:6.3f} {speed * share:26.3f}")
    for least, most in ((1, 16), (17, 64)):
        rows = [shape for shape in shares if least <= shape[0] <= most]
        room, reached = [
            np.log([of(shape) for shape in rows]) for of in (lambda shape: 1 / shares[shape][0], ours.__getitem__)
        ]
        print(
            f"{least} to {most} rows, {len(rows)} layers: room {mean(room)}, ours {mean(reached)}, "
            f"share of the floor {mean(reached - room)}, at 92% of it {math.exp(room.mean()) * 0.92:.3f}"
        )


if __name__ == "__main__":
    main()
