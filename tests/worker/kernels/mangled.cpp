// expect: rejected
// reason: hgemm is no extern "C" function; the contract declares extern "C" int hgemm(const _Float16* A
// Defines hgemm as a C++ function.
int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) { return 0; }
