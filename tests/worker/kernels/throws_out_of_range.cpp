// expect: launch_error
// reason: an exception was not caught: std::out_of_range
// Catches nothing that its library throws, in a thread.
#include <vector>

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    std::vector<float> row(4);
#pragma omp parallel
    row.at(M) = 1;
    return 0;
}
