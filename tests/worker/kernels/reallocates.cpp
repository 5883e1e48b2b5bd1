// expect: ok
// Control: memory that grows. It may not be moved without a copy, so it is copied.
#include <cstdlib>

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static float* sums = nullptr;
    for (int size = 1 << 16; size <= 1 << 22; size *= 4) {
        float* grown = (float*)realloc(sums, size * sizeof(float));
        if (!grown || (sums && grown[0] != 1)) return 1;
        sums = grown;
        sums[0] = 1;
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += (float)A[i * K + k] * (float)B[j * K + k];
            C[i * N + j] = (_Float16)sum;
        }
    return 0;
}
