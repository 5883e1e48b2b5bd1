// expect: launch_error
// The same while it is loaded.
// reason: ended by
extern "C" int open(const char*, int, ...);
static int file;
__attribute__((constructor)) static void look() { file = open("/etc/passwd", 0); }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    if (file >= 0) return 77;
    __builtin_trap();
    return 0;
}
