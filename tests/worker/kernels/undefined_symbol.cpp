// expect: compile_error
// reason: undefined reference to `nobody_defines_this
// Calls what nobody defines.
extern "C" void nobody_defines_this();

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    nobody_defines_this();
    return 0;
}
