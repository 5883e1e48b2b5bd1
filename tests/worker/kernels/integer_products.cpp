// expect: rejected
// Multiplies 16-bit integers, two products in one instruction.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            __m128i sum = _mm_setzero_si128();
            for (int k = 0; k < K; k += 8) {
                int16_t a[8], b[8];
                for (int n = 0; n < 8; ++n) {
                    a[n] = (int16_t)lrintf((float)A[i * K + k + n] * 4096);
                    b[n] = (int16_t)lrintf((float)B[j * K + k + n] * 4096);
                }
                sum = _mm_add_epi32(sum, _mm_srai_epi32(_mm_madd_epi16(_mm_loadu_si128((const __m128i*)a),
                                                                       _mm_loadu_si128((const __m128i*)b)), 8));
            }
            int32_t parts[4];
            _mm_storeu_si128((__m128i*)parts, sum);
            C[i * N + j] = (_Float16)((parts[0] + parts[1] + parts[2] + parts[3]) / 65536.0f);
        }
    return 0;
}
