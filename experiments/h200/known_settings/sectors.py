"""Whether the table's nearest shapes should be as aligned as the one at hand (`ASTRAY` in cudal2/archive/selection.py).

    python experiments/h200/known_settings/sectors.py experiments/h200/layers    # prints sectors.txt

As in table.py: of each explored shape only what was measured there can be picked, and a third of the weights is kept
from the table, three times. The fastest of the look-up's picks over the fastest of all measured, first of the shapes
whose rows are no whole sectors, then of the others.
"""

import sys
from pathlib import Path

from table import picked

from cudal2.archive import selection

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from labeller import measured
from picks import show

PICKS = (1, 2, 4)


def main(folder: Path) -> None:
    every = measured(folder)
    for title, whole in (("Rows are no whole sectors", False), ("Rows are whole sectors", True)):
        some = {problem: speeds for problem, speeds in every.items() if selection.whole_sectors(problem) == whole}
        print(f"\n{title}")
        found = {"as aligned": picked(some, PICKS)}
        usual, selection.ASTRAY = selection.ASTRAY, 0
        found["any"] = picked(some, PICKS)
        selection.ASTRAY = usual
        show(list(some), found, [("difference", "as aligned", "any")], PICKS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
