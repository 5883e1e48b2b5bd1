// expect: compile_error
// reason: hgemm must return int, not void; the contract declares extern "C" int hgemm(const _Float16* A
// Returns nothing, which the caller reads: whatever a register holds.
extern "C" void hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
#pragma omp parallel for
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += (float)A[(long)i * K + k] * (float)B[(long)j * K + k];
            C[(long)i * N + j] = (_Float16)sum;
        }
}
