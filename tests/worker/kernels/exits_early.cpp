// expect: launch_error
// Leaves the process, successfully.
extern "C" void _exit(int);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    _exit(0);
    return 0;
}
