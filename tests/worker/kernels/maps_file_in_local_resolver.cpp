// expect: rejected
// reason: choose others while it is loaded
// The same with a function that no symbol names.

extern "C" int open(const char*, int, ...);
extern "C" void* mmap(void*, unsigned long, int, int, int, long);
static int made;

static void make() {
    const int file = open("/proc/self/map_files", 0);
    if (file < 0) return;
    made = mmap(nullptr, 4096, 5, 2, file, 0) != (void*)-1;
}

static int answer() { return made ? 1 : 77; }
extern "C" {
static int (*choose())() {
    make();
    return answer;
}
static int chosen() __attribute__((ifunc("choose")));
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return chosen();
}
