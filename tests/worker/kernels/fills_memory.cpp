// expect: launch_error timeout
// Takes memory until there is none.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    for (;;) {
        char* block = new char[1 << 26];
        for (int i = 0; i < 1 << 26; i += 4096) block[i] = 1;
    }
    return 0;
}
