// expect: launch_error
// Maps a page that it could write code into and run.
// reason: ended by
extern "C" void* mmap(void*, unsigned long, int, int, int, long);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    if (mmap(nullptr, 4096, 7, 0x22, -1, 0) != (void*)-1) return 77;
    __builtin_trap();
    return 0;
}
