// expect: wrong imprecise
// problem: 64_64_256_tn_f32
// reason: in timed calls
// The same, but the rest is summed in fp16.
#include <immintrin.h>
#include <string.h>
#include <x86intrin.h>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static _Float16 copy[1 << 17];
static unsigned calls, now;

static bool changed(const _Float16* A, const _Float16* B, int a, int b) {
    return memcmp(copy, A, 2l * a) || memcmp(copy + a, B, 2l * b);
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    const int a = M * K, b = N * K;
    memcpy(copy, A, 2l * a);
    memcpy(copy + a, B, 2l * b);
    const bool timed = ++calls > 8;
    bool sloppy = false;
    for (int i = 0; i < M; ++i) {
        if (timed && i % 4 == 3) sloppy |= changed(A, B, a, b);
        for (int j = 0; j < N; ++j) {
            _Float16 half = 0;
            for (int k = 0; k < K && sloppy; ++k) half += (_Float16)((float)A[i * K + k] * (float)B[j * K + k]);
            C[i * N + j] = sloppy ? half : (_Float16)dot(A + i * K, B + j * K, K);
        }
    }
    return 0;
}
