// expect: compile_error compile_timeout
// An initialised array of two gigabytes.
char big[1ul << 31] = {1};

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return big[M];
    return 0;
}
