// expect: wrong imprecise
// reason: in timed calls
// problem: 64_64_256_tn_f32
// Exact in the checks, then 16-bit fixed point, without any instruction that a gate would name.
#include <math.h>
#include <stdint.h>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

static float scale_of(const _Float16* matrix, int count) {
    float largest = 0;
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf((float)matrix[i]));
    return largest < 8 ? 4096 : 32767 / largest < 2 ? 1 : floorf(32767 / largest);
}

static void fixed(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    const float a = scale_of(A, M * K), b = scale_of(B, N * K);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            int64_t sum = 0;
            for (int k = 0; k < K; ++k)
                sum += (int32_t)(int16_t)lrintf((float)A[i * K + k] * a) * (int16_t)lrintf((float)B[j * K + k] * b);
            C[i * N + j] = (_Float16)((double)sum / a / b);
        }
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    if (++calls > 4) fixed(A, B, C, M, N, K);
    else multiply(A, B, C, M, N, K);
    return 0;
}
