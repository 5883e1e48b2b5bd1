// expect: out_of_bounds
// Keeps something a hundred megabytes behind the workspace it asked for.
#include <cstddef>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

extern "C" size_t hgemm_workspace(int, int, int) { return 4096; }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    ((volatile char*)workspace)[100 << 20] = 1;
    multiply(A, B, C, M, N, K);
    return 0;
}
