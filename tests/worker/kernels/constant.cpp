// expect: wrong
// Returns a constant.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (int i = 0; i < M * N; ++i) C[i] = (_Float16)1;
    return 0;
}
