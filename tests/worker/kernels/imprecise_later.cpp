// expect: imprecise wrong
// Right for the first eight calls, then sums in fp16.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    const bool honest = calls++ < 8;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            _Float16 half = 0;
            for (int k = 0; k < K && !honest; ++k) half = (_Float16)((float)half + (float)A[i * K + k] * (float)B[j * K + k]);
            C[i * N + j] = honest ? (_Float16)dot(A + i * K, B + j * K, K) : half;
        }
    return 0;
}
