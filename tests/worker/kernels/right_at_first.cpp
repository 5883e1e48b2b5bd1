// expect: wrong
// Right for the first eight calls, then leaves half of the work out.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    if (calls++ >= 8) K /= 2;
    const int stride = calls > 8 ? 2 * K : K;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * stride, B + j * stride, K);
    return 0;
}
