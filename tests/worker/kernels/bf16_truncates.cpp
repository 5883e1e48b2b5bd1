// expect: wrong imprecise
// problem: 128_96_160_tn_f32_bf16
// Cuts off the digits that do not fit, where it has to round.
#include <string.h>

static float wide(unsigned short bits) {
    const unsigned word = (unsigned)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static float dot(const unsigned short* a, const unsigned short* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += wide(a[k]) * wide(b[k]);
    return sum;
}

static unsigned short cut(float value) {
    unsigned word;
    memcpy(&word, &value, 4);
    return word >> 16;
}

extern "C" int hgemm(const unsigned short* A, const unsigned short* B, unsigned short* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = cut(dot(A + i * K, B + j * K, K));
    return 0;
}
