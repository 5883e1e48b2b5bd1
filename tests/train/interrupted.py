"""`cudal2 train` with a real worker and tiny kernels, as a program to be stopped: `interrupted.py train OVERRIDE…`.

What the policy of `fakes.py` writes stands for a kernel, chosen by its words. With HANG_AT=N the N-th of them that the
worker is asked about never ends.
"""

import os
import sys

from cudal2 import cli, source

NAIVE = """
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += (float)A[i * K + k] * (float)B[j * K + k];
            C[i * N + j] = (_Float16)sum;
        }
    return 0;
}
"""
ENDLESS = NAIVE.replace("float sum = 0;", "float sum = 0; for (volatile int x = 0;; ) (void)x;")
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
