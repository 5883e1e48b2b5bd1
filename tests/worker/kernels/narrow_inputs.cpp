// expect: wrong imprecise
// Inputs cut to four bits of mantissa, as an 8-bit float format would.
#include <cstring>
#include <cstdint>

static float narrow(_Float16 wide) {
    uint16_t bits;
    std::memcpy(&bits, &wide, 2);
    bits &= 0xFF80;
    std::memcpy(&wide, &bits, 2);
    return (float)wide;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += narrow(A[i * K + k]) * narrow(B[j * K + k]);
            C[i * N + j] = (_Float16)sum;
        }
    return 0;
}
