"""`cudal2 train` with a real worker and tiny kernels, as a program to be stopped: `interrupted.py train OVERRIDE…`.

What the policy of `fakes.py` writes stands for a kernel, chosen by its words. With HANG_AT=N the N-th of them that the
worker is asked about never ends.
"""

import os
import sys

from naive import ENDLESS, NAIVE

from cudal2 import cli, source

asked = 0


def kernel(text: str, _: object) -> str | None:
    global asked
    asked += 1
    if str(asked) == os.environ.get("HANG_AT"):
        return ENDLESS
    words = text.split()
    if "hgemm(){}" not in words:
        return None
    return NAIVE.replace("sum +=", "sum -=" if "bug" in words else "sum +=")


if __name__ == "__main__":
    source.extract = kernel
    sys.exit(cli.main())
