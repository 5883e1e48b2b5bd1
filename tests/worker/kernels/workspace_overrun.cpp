// expect: out_of_bounds
// Uses one float more than it asked for.
#include <cstddef>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" size_t hgemm_workspace(int, int N, int) { return sizeof(float) * N; }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    float* row = (float*)workspace;
    row[N] = 1;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
    return 0;
}
