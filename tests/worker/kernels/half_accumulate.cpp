// expect: imprecise
// An fp16 accumulator where fp32 is asked for.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            _Float16 sum = 0;
            for (int k = 0; k < K; ++k) sum = (_Float16)((float)sum + (float)A[i * K + k] * (float)B[j * K + k]);
            C[i * N + j] = sum;
        }
    return 0;
}
