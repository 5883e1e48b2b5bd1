// expect: ok
// problem: 96_96_160_tn_f32_fp16_bias
// Control: the bias is added in fp32.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, const _Float16* bias, _Float16* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)(dot(A + i * K, B + j * K, K) + (float)bias[j]);
    return 0;
}
