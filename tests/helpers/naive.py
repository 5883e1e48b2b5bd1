"""The plainest right kernel for a processor, and one like it that never ends."""

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
