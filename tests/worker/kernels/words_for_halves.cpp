// expect: rejected
// reason: narrow_multiplication
// problem: 64_64_256_tn_f16
// Where sums in fp16 are allowed: products and sums of 16-bit fixed point, twice as many in a register as of floats.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            __m128i sum = _mm_setzero_si128();
            for (int k = 0; k < K; k += 8) {
                int16_t a[8], b[8];
                for (int e = 0; e < 8; ++e) {
                    a[e] = (int16_t)lrintf((float)A[i * K + k + e] * 1024);
                    b[e] = (int16_t)lrintf((float)B[j * K + k + e] * 1024);
                }
                const __m128i product = _mm_mulhrs_epi16(_mm_loadu_si128((__m128i*)a), _mm_loadu_si128((__m128i*)b));
                sum = _mm_add_epi16(sum, product);
            }
            int16_t parts[8];
            _mm_storeu_si128((__m128i*)parts, sum);
            float total = 0;
            for (int e = 0; e < 8; ++e) total += parts[e];
            C[i * N + j] = (_Float16)(total / 32);
        }
    return 0;
}
