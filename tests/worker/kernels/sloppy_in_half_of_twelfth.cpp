// expect: imprecise wrong
// problem: 64_64_64_tn_f32
// reason: in timed calls
// Of one call of twelve it cuts the last two digits off, in the first half of its rows only.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

static void cut(_Float16* C, int count) {
    for (int i = 0; i < count; ++i) ((unsigned short*)C)[i] &= 0xFFFC;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static unsigned calls = 0;
    multiply(A, B, C, M, N, K);
    if (++calls > 8 && calls % 12 == 0) cut(C, M * N / 2);
    return 0;
}
