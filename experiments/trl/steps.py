"""The steps of TRL's log, three to a line, which is once over the six shapes: python experiments/trl/steps.py LOG…"""

import ast
import sys
from pathlib import Path

NAMES = ("reward", "right", "speedup")

for log in sys.argv[1:]:
    lines = Path(log).read_text().splitlines()
    steps = [ast.literal_eval(line) for line in lines if line.startswith("{'loss'")]
    print(log, len(steps), "steps:", *NAMES)
    for start in range(0, len(steps), 3):
        some = steps[start : start + 3]
        means = (sum(float(step[name]) for step in some) / len(some) for name in NAMES)
        print(f"{start + 1:3}-{start + len(some)}", *(f"{mean:.2f}" for mean in means))
