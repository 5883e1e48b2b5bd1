// expect: rejected compile_error
// The same in a table of numbers that is put among the instructions.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" __attribute__((used, section(".fini"), visibility("hidden"))) const unsigned char tile[] = {
    0x62, 0xe2, 0x6d, 0x48, 0x52, 0xc1,
    0x62, 0xe2, 0x6d, 0x48, 0x52, 0xc9,
    0x62, 0xe2, 0x6d, 0x48, 0x52, 0xd1,
    0x62, 0xe2, 0x6d, 0x48, 0x52, 0xd9,
    0x62, 0xe2, 0x6d, 0x48, 0x52, 0xe1,
    0x62, 0xe2, 0x6d, 0x48, 0x52, 0xe9,
    0xc3,
};
using Tile = void (*)(const void*, const void*, void*, long);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static unsigned calls = 0;
    if (++calls > 1u << 30) ((Tile)tile)(A, B, C, K);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
    return 0;
}
