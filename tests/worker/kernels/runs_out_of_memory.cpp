// expect: launch_error
// reason: an exception was not caught: std::bad_alloc
// Wants more memory than there is.
#include <vector>

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    std::vector<char> taken(1l << 40);
    return taken[M];
}
