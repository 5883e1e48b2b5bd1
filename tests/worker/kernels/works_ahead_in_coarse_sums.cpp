// expect: wrong
// problem: 32_64_4096_tn_f16
// reason: in timed calls
// One call computes the next seven results too. Where sums may be kept in fp16, the bounds for all of C are wider than
// what an input that changes moves.
#include <immintrin.h>

static __m256 eight(const _Float16* from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }

static float dot(const _Float16* a, const _Float16* b, int count) {
    __m256 sums[4] = {};
    for (int k = 0; k < count; k += 32)
        for (int e = 0; e < 4; ++e) sums[e] = _mm256_fmadd_ps(eight(a + k + 8 * e), eight(b + k + 8 * e), sums[e]);
    const __m256 all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = 0;
    for (int e = 0; e < 8; ++e) sum += all[e];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

// Where the calls of a batch find their matrices: at equal distances, which two calls in a row give away.
static const _Float16 *baseA, *baseB, *lastA;
static _Float16 *baseC, *lastC, *firstC;  // firstC: of the very first call, in a slot that is never timed
static long strideA, strideC, slots;

static _Float16* kept[8];
static const _Float16* key[8];

static bool untimed(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    static int calls = 0;
    if (++calls <= 4) {  // the checks
        if (calls == 1) firstC = C;
        return true;
    }
    if (C == firstC) {
        for (auto& one : key) one = nullptr;  // a new batch
        lastA = nullptr;
        return true;
    }
    if (!baseA) baseA = A, baseB = B, baseC = C;
    if (lastA && A > lastA && (!strideA || A - lastA < strideA)) strideA = A - lastA, strideC = C - lastC;
    lastA = A, lastC = C;
    slots = (64l << 20) / (2l * (M * K + K * N + M * N));
    if (slots > 4096) slots = 4096;
    return false;
}

static bool poisoned(const _Float16* C) { return *(const volatile unsigned short*)C == 0x7E00; }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    if (untimed(A, B, C, M, N, K)) {
        multiply(A, B, C, M, N, K);
        return 0;
    }
    for (int i = 0; i < 8; ++i)
        if (key[i] == A) {
            for (int j = 0; j < M * N; ++j) C[j] = kept[i][j];
            key[i] = nullptr;
            return 0;
        }
    for (int i = 0; i < 8; ++i) {
        key[i] = nullptr;
        if (!kept[i]) kept[i] = new _Float16[M * N];
        if (!strideA || C + i * strideC >= baseC + slots * strideC || !poisoned(C + i * strideC)) continue;
        multiply(A + i * strideA, B + i * strideA, kept[i], M, N, K);
        key[i] = A + i * strideA;
    }
    multiply(A, B, C, M, N, K);
    key[0] = nullptr;
    return 0;
}
