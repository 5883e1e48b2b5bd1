// expect: wrong
// problem: 64_64_256_tn_f32
// reason: in timed calls
// The same, but the rest of the output is that of the call before, which looks like any result.
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

static _Float16 before[1 << 14];

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    const int a = M * K, b = N * K;
    memcpy(copy, A, 2l * a);
    memcpy(copy + a, B, 2l * b);
    const bool timed = ++calls > 8;
    for (int i = 0; i < M; ++i) {
        if (timed && i % 8 == 7 && changed(A, B, a, b)) {
            memcpy(C + i * N, before + i * N, 2l * (M - i) * N);
            break;
        }
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
    }
    memcpy(before, C, 2l * M * N);
    return 0;
}
