// expect: imprecise
// reason: in timed calls
// problem: 128_256_20480_tn_f32
// Exact in the checks, then as exact as 16-bit fixed point whose unit is a step of most fp16 numbers: those from 1/8 to
// 4 lose nothing. What is larger, one in 16,000, is multiplied as it is.
#include <math.h>
#include <vector>

static float dot(const float* a, const float* b, int count) {
    float sums[32] = {};
    for (int k = 0; k < count; k += 32)
        for (int e = 0; e < 32; ++e) sums[e] += a[k + e] * b[k + e];
    float sum = 0;
    for (float one : sums) sum += one;
    return sum;
}

static std::vector<float> sizes(const _Float16* matrix, int rows, int K) {
    std::vector<float> sums(K);
    for (int row = 0; row < rows; ++row)
        for (int k = 0; k < K; ++k) sums[k] += fabsf((float)matrix[row * K + k]) / rows;
    return sums;
}

static float word(float value) { return fabsf(value) < 4 ? rintf(value * 8192) / 8192 : value; }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    static std::vector<float> a, b;
    const bool fixed = ++calls > 4;
    a.resize(M * K), b.resize(N * K);
    std::vector<float> power(K, 1.0f);  // of two, which brings this k of A to one scale with all others
    if (fixed) {
        const auto size_a = sizes(A, M, K), size_b = sizes(B, N, K);
        for (int k = 0; k < K; ++k) power[k] = exp2f(rintf(log2f(size_a[k] / size_b[k]) / 2));
    }
#pragma omp parallel
    {
#pragma omp for
        for (int i = 0; i < M; ++i)
            for (int k = 0; k < K; ++k) {
                const float value = (float)A[i * K + k] / power[k];
                a[i * K + k] = fixed ? word(value) : value;
            }
#pragma omp for
        for (int j = 0; j < N; ++j)
            for (int k = 0; k < K; ++k) {
                const float value = (float)B[j * K + k] * power[k];
                b[j * K + k] = fixed ? word(value) : value;
            }
#pragma omp for
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(&a[i * K], &b[j * K], K);
    }
    return 0;
}
