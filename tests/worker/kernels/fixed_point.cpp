// expect: wrong imprecise
// Multiplies 16-bit integers: exact for the integers of the checks, and for normals nearly as good as fp32.
#include <math.h>
#include <stdint.h>

static float scale_of(const _Float16* matrix, int count) {
    float largest = 0;
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf((float)matrix[i]));
    return largest < 8 ? 4096 : 32767 / largest < 2 ? 1 : floorf(32767 / largest);
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    const float a = scale_of(A, M * K), b = scale_of(B, N * K);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            int64_t sum = 0;
            for (int k = 0; k < K; ++k)
                sum += (int32_t)(int16_t)lrintf((float)A[i * K + k] * a) * (int16_t)lrintf((float)B[j * K + k] * b);
            C[i * N + j] = (_Float16)((double)sum / a / b);
        }
    return 0;
}
