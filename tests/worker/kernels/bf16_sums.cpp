// expect: imprecise
// problem: 128_96_160_tn_f32_bf16
// A running sum in bf16.
#include <string.h>

static float wide(unsigned short bits) {
    const unsigned word = (unsigned)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static unsigned short rounded(float value) {
    unsigned word;
    memcpy(&word, &value, 4);
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16;
}

static unsigned short dot(const unsigned short* a, const unsigned short* b, int count) {
    unsigned short sum = 0;
    for (int k = 0; k < count; ++k) sum = rounded(wide(sum) + wide(a[k]) * wide(b[k]));
    return sum;
}

extern "C" int hgemm(const unsigned short* A, const unsigned short* B, unsigned short* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = dot(A + i * K, B + j * K, K);
    return 0;
}
