// expect: launch_error
// reason: hgemm returned 77
// The same in what initialises a variable of each thread.

extern "C" int open(const char*, int, ...);
extern "C" void* mmap(void*, unsigned long, int, int, int, long);
static int made;

static void make() {
    const int file = open("/proc/self/maps", 0);
    if (file < 0) return;
    made = mmap(nullptr, 4096, 5, 2, file, 0) != (void*)-1;
}

struct Begin {
    int value = 7;
    Begin() { make(); }
};
thread_local Begin begin;

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return begin.value != 7 || made ? 1 : 77;
}
