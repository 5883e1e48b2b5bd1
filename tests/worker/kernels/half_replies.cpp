// expect: launch_error
// reason: nonsense
// problem: 32_32_64_tn_f32
// Never returns, but reads the commands itself, and answers the question whether it is awake with the first byte of its
// next reply, too. Whoever waited for the rest of that looked at nothing meanwhile: the inputs of no call changed.
#include <cstdint>

extern "C" long read(int, void*, unsigned long);
extern "C" long write(int, const void*, unsigned long);

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    static const _Float16 *A0, *B0;
    static _Float16* C0;
    if (!calls) A0 = A, B0 = B, C0 = C;
    multiply(A, B, C, M, N, K);
    if (++calls <= 4) return 0;  // the checks
    const long in = M * K + K * N + 64, out = M * N + 32;  // slots lie at equal distances
    const char zeros[17] = {};
    write(101, zeros, 16);
    bool ahead = false;
    for (uint32_t told[2]; read(100, told, sizeof told) == sizeof told;) {
        for (uint32_t i = told[0]; i < told[0] + told[1]; ++i) {
            if (i < 2) multiply(A0, B0, C0, M, N, K);
            else multiply(A + (i - 2l) * in, B + (i - 2l) * in, C + (i - 2l) * out, M, N, K);
        }
        write(101, zeros, ahead ? 15 : told[1] ? 16 : 17);
        ahead = !told[1];
    }
    return 0;
}
