// expect: ok
// problem: 96_96_160_tn_f32_bf16_bias
// Control: the bias is added in fp32.
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

static float dot(const unsigned short* a, const unsigned short* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += wide(a[k]) * wide(b[k]);
    return sum;
}

extern "C" int hgemm(const unsigned short* A, const unsigned short* B, const unsigned short* bias, unsigned short* C, int M,
                     int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = rounded(dot(A + i * K, B + j * K, K) + wide(bias[j]));
    return 0;
}
