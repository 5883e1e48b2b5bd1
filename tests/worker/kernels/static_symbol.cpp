// expect: rejected
// The entry point is not visible to C.
static int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return 0;
}
int use() { return hgemm(0, 0, 0, 0, 0, 0, 0); }
