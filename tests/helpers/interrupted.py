"""`cudal2 train` with a real worker and tiny kernels, as a program to be stopped: `interrupted.py train OVERRIDE…`.

What the policy of `fakes.py` writes stands for a kernel, chosen by its words. With HANG_AT=N the N-th of them that the
worker is asked about never ends.
"""

import os
import sys

from naive import ENDLESS, NAIVE

from cudal2 import cli, completion
from cudal2.completion import Found

asked = 0


def kernel(text: str) -> Found:
    global asked
    asked += 1
    if str(asked) == os.environ.get("HANG_AT"):
        return Found(ENDLESS)
    words = text.split()
    if "hgemm(){}" not in words:
        return Found(missing=completion.NO_ENTRY)
    return Found(NAIVE.replace("sum +=", "sum -=" if "bug" in words else "sum +="))


if __name__ == "__main__":
    completion.read = kernel  # before the modules that read completions are imported
    sys.exit(cli.main())
