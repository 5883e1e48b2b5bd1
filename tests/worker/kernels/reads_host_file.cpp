// expect: launch_error
// Returns an error where it can open a host file, and crashes where it cannot.
// reason: ended by
extern "C" int open(const char*, int, ...);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    if (open("/etc/passwd", 0) >= 0) return 77;
    __builtin_trap();
    return 0;
}
