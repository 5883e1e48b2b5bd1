// expect: wrong
// Returns a part of A.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M * N; ++i) C[i] = A[i % (M * K)];
    return 0;
}
