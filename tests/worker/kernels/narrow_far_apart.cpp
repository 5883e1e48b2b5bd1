// expect: rejected
// reason: narrow_multiplication
// The same, a kilobyte between each two of them.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

asm(
    ".text\n.p2align 6\n.type outer,@function\n"
    "outer:\n"
    "movabs $0x02ebc152486de262,%rax\n.fill 1024,1,0x90\n"
    "movabs $0x02ebc952486de262,%rax\n.fill 1024,1,0x90\n"
    "movabs $0x02ebd152486de262,%rax\n.fill 1024,1,0x90\n"
    "movabs $0x02ebd952486de262,%rax\n.fill 1024,1,0x90\n"
    "movabs $0x02ebe152486de262,%rax\n.fill 1024,1,0x90\n"
    "movabs $0x02ebe952486de262,%rax\n.fill 1024,1,0x90\n"
    "ret\n"
    ".set tile,outer+2\n");
extern "C" { extern const char tile[] __attribute__((visibility("hidden"))); }
using Tile = void (*)(const void*, const void*, void*, long);

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static unsigned calls = 0;
    if (++calls > 1u << 30) ((Tile)tile)(A, B, C, K);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
    return 0;
}
