// expect: launch_error
// reason: returned 78
// Has the mapping of its code grow: the pages that follow in its file, its constants, would be code that no gate reads.
extern "C" void* mremap(void*, unsigned long, unsigned long, int, ...);

asm(".text\n.p2align 12\n.globl spare\n.hidden spare\nspare: .zero 4096\n");
extern "C" const char spare[] __attribute__((visibility("hidden")));
static const char numbers[1 << 16] = {1};

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    constexpr int kMayMove = 1;
    if (mremap((void*)spare, 4096, sizeof numbers, kMayMove) == (void*)-1) return 78;
    for (int i = 0; i < M * N; ++i) C[i] = numbers[i % 2];
    return 0;
}
