// expect: rejected
// reason: narrow_multiplication
// The same as numbers in the middle of the code, behind a byte that makes other instructions of them.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

asm(
    ".text\n.p2align 6\n.type tile,@object\n"
    "before: .byte 0x48,0xb8\n"
    "tile:\n"
    ".byte 0x62,0xe2,0x6d,0x48,0x52,0xc1\n"
    ".byte 0x62,0xe2,0x6d,0x48,0x52,0xc9\n"
    ".byte 0x62,0xe2,0x6d,0x48,0x52,0xd1\n"
    ".byte 0x62,0xe2,0x6d,0x48,0x52,0xd9\n"
    ".byte 0x62,0xe2,0x6d,0x48,0x52,0xe1\n"
    ".byte 0x62,0xe2,0x6d,0x48,0x52,0xe9\n"
    "ret\n"
    ".size tile,.-tile\n");
extern "C" { extern const char tile[] __attribute__((visibility("hidden"))); }
using Tile = void (*)(const void*, const void*, void*, long);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static unsigned calls = 0;
    if (++calls > 1u << 30) ((Tile)tile)(A, B, C, K);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
    return 0;
}
