// expect: launch_error
// reason: an exception was not caught: of another type
// Throws through the C interface.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    throw 1;
    return 0;
}
