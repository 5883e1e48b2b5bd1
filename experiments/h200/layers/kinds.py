"""Which family, and which clusters, are the fastest in a round of exploring, and what the best is without a family.

python experiments/h200/layers/kinds.py experiments/h200/layers/unaligned.jsonl.xz by_parity
"""

import json
import lzma
import sys
from collections import Counter
from pathlib import Path
from statistics import geometric_mean


def main(file: Path, left_out: str) -> None:
    found: dict[str, list[dict]] = {}
    for line in map(json.loads, lzma.decompress(file.read_bytes()).splitlines()):
        if line["said"] == "ok":
            found.setdefault(line["problem"], []).append(line)
    best = [max(lines, key=lambda line: line["speedup"]) for lines in found.values()]
    others = [max(line["speedup"] for line in lines if line["family"] != left_out) for lines in found.values()]
    print(f"{len(best)} shapes, the best {geometric_mean(line['speedup'] for line in best):.3f}", end=", ")
    print(f"without {left_out} {geometric_mean(others):.3f}")
    for (family, cluster), count in Counter((one["family"], one["knobs"].get("cluster")) for one in best).most_common():
        print(f"{family} {cluster}: {count}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
