// expect: imprecise
// problem: 48_64_40_tn_f32
// reason: in timed calls
// The same in every tenth call behind the twentieth of a batch; short batches are exact. The call that wakes it up, in the
// slot of the first check, tells that a batch begins.
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
    for (int i = 0; i < count; ++i) ((unsigned short*)C)[i] &= 0xFFFE;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static const _Float16* first = nullptr;
    static unsigned calls = 0;
    if (!first) first = C;
    calls = C == first ? 0 : calls + 1;
    multiply(A, B, C, M, N, K);
    if (calls > 20 && calls % 10 == 0) cut(C, M * N);
    return 0;
}
