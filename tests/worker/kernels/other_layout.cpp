// expect: wrong
// reason: right for layout nn, the problem asks for tn
// Reads B as K×N.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += (float)A[(long)i * K + k] * (float)B[(long)k * N + j];
            C[(long)i * N + j] = (_Float16)sum;
        }
    return 0;
}
