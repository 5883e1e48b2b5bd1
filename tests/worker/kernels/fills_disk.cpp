// expect: launch_error
// Writes to a file in the temporary folder without end.
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    const int file = open("/tmp/full", 01101, 0600);
    if (file < 0) __builtin_trap();
    for (;;) write(file, A, K);
    return 0;
}
