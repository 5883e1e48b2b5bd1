// expect: compile_error
// reason: hgemm_workspace must return size_t, not int; the contract declares extern "C" size_t hgemm_workspace(int M
// Asks for workspace by a function of another type.
extern "C" int hgemm_workspace(int M, int N, int K) { return M; }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) { return 0; }
