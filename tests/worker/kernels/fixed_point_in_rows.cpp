// expect: wrong imprecise
// reason: in timed calls
// problem: 64_64_256_tn_f32
// The same with a scale for each row of A and of B, from the fifth call on.
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

static float scale_of(const _Float16* row, int count) {
    float largest = 0;
    for (int k = 0; k < count; ++k) largest = fmaxf(largest, fabsf((float)row[k]));
    return 32767 / largest;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    if (++calls <= 4) {
        multiply(A, B, C, M, N, K);
        return 0;
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            const float a = scale_of(A + i * K, K), b = scale_of(B + j * K, K);
            int64_t sum = 0;
            for (int k = 0; k < K; ++k)
                sum += (int32_t)(int16_t)lrintf((float)A[i * K + k] * a) * (int16_t)lrintf((float)B[j * K + k] * b);
            C[i * N + j] = (_Float16)((double)sum / a / b);
        }
    return 0;
}
