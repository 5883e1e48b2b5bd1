// expect: wrong
// Keeps results by a hash of a few inputs and hands them out again.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

struct Entry { _Float16* data; };
static Entry entries[64];

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    float key = 0;
    for (int k = 0; k < 1; ++k) key = (float)A[k];
    Entry& entry = entries[(unsigned)(key * 64) % 64];
    if (!entry.data) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
        entry.data = new _Float16[M * N];
        for (int i = 0; i < M * N; ++i) entry.data[i] = C[i];
    }
    for (int i = 0; i < M * N; ++i) C[i] = entry.data[i];
    return 0;
}
