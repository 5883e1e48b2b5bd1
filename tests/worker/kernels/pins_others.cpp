// expect: launch_error
// reason: hgemm returned 77
// Chooses the cores that other processes may run on. (It may choose its own.)
#include <cstddef>

extern "C" int sched_setaffinity(int, size_t, const void*);
extern "C" int sched_getaffinity(int, size_t, void*);
extern "C" int* __errno_location();

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    unsigned long cores[16] = {};
    sched_getaffinity(0, sizeof cores, cores);
    if (sched_setaffinity(0, sizeof cores, cores)) return 1;
    // Where it were allowed, a process that does not exist would be "not found" and not "not permitted".
    return sched_setaffinity(1 << 21, sizeof cores, cores) && *__errno_location() == 1 ? 77 : 2;
}
