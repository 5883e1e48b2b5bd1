// expect: ok
// Objects that live outside functions: their constructors run before the first call, as for any library.
#include <stdlib.h>
#include <memory>
#include <vector>

struct Table {
    std::vector<float> wide = std::vector<float>(1 << 16);
    Table() {
        for (unsigned i = 0; i < wide.size(); ++i) {
            const unsigned short bits = i;
            _Float16 half;
            __builtin_memcpy(&half, &bits, 2);
            wide[i] = (float)half;
        }
    }
};
static const Table table;
static const std::unique_ptr<int> one(new int(1));
static int made;
__attribute__((constructor)) static void make() { ++made; }
thread_local std::vector<float> sums(4);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    if (made != 1 || *one != 1) return 1;
    const unsigned short *a = (const unsigned short*)A, *b = (const unsigned short*)B;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            sums[0] = 0;
            for (int k = 0; k < K; ++k) sums[0] += table.wide[a[i * K + k]] * table.wide[b[j * K + k]];
            C[i * N + j] = (_Float16)sums[0];
        }
    return 0;
}
