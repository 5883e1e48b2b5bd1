// expect: launch_error
// reason: ended by signal 35
// Forges the runner's report of its end, with a signal that has no name.
extern "C" long write(int, const void*, unsigned long);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    const struct { unsigned kind; int code; unsigned long detail; } reply{5, 35, 0};
    write(101, &reply, sizeof reply);
    for (;;) {}
}
