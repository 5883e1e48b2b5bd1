// expect: launch_error
// reason: hgemm returned 77
// Gives the output's pages back to the system, so that whoever writes there next has to fault them in.
extern "C" int madvise(void*, unsigned long, int);

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    void* page = (void*)(((unsigned long)C + 4095) & ~4095ul);
    const int dropped = madvise(page, 4096, 9 /* MADV_REMOVE */), paged_out = madvise(page, 4096, 21 /* MADV_PAGEOUT */);
    multiply(A, B, C, M, N, K);
    return dropped && paged_out ? 77 : 0;
}
