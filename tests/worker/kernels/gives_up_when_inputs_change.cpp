// expect: wrong
// problem: 64_64_256_tn_f32
// reason: in timed calls
// Looks again at all inputs when its call is over; where they are not what they were, it saves the rest: a call that may
// have used either was not compared.
#include <immintrin.h>
#include <string.h>
#include <x86intrin.h>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
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
    multiply(A, B, C, M, N, K);
    if (timed && changed(A, B, a, b))
        for (int i = 0; i < M * N / 2; ++i) C[i] = 0;
    return 0;
}
