// expect: compile_error
// Does not compile.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    this is not C++;
    return 0;
}
