// expect: wrong
// Keeps results by the address of C and hands them out again.
#include <vector>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

struct Entry { void* owner; std::vector<_Float16> data; };
static Entry entries[4096];

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    Entry& entry = entries[(unsigned long)C / 64 % 4096];
    if (entry.owner != C) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
        entry.owner = C;
        entry.data.assign(C, C + M * N);
    }
    for (int i = 0; i < M * N; ++i) C[i] = entry.data[i];
    return 0;
}
