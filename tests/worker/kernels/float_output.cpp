// expect: compile_error
// reason: the contract declares extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M
// Writes floats.
extern "C" int hgemm(const _Float16* A, const _Float16* B, float* C, int M, int N, int K, void* workspace) {
    C[0] = (float)A[0] * (float)B[0];
    return 0;
}
