// expect: launch_error
// reason: hgemm returned 77
// Makes pages that it can write code into and run, while its constructors still may map files.
extern "C" void* mmap(void*, unsigned long, int, int, int, long);
extern "C" int mprotect(void*, unsigned long, int);
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

static bool made;

__attribute__((constructor)) static void make() {
    void* const failed = (void*)-1;
    const int protections[] = {5, 7};
    for (int protection : protections) made |= mmap(nullptr, 4096, protection, 0x22, -1, 0) != failed;
    void* page = mmap(nullptr, 4096, 3, 0x22, -1, 0);
    made |= page != failed && !mprotect(page, 4096, 5);
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    if (!made) return 77;
    multiply(A, B, C, M, N, K);
    return 0;
}
