// expect: launch_error
// reason: hgemm returned 77
// Maps a page of its own file, full of numbers, to be executed, before the filter is narrow. (77 says that it could not.)

extern "C" int open(const char*, int, ...);
extern "C" void* mmap(void*, unsigned long, int, int, int, long);
static int made;

static void make(int argc, char** argv) {
    const int file = argc > 1 ? open(argv[1], 0) : -1;
    if (file < 0) return;
    made = mmap(nullptr, 4096, 5, 2, file, 0) != (void*)-1;
}

__attribute__((constructor)) static void begin(int argc, char** argv, char**) { make(argc, argv); }

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return made ? 1 : 77;
}
