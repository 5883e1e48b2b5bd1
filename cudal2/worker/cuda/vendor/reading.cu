// Kernels that read every byte of a call's inputs once, write as many as C has, and do nothing else: a product of few
// rows can hardly take less time. reading.py launches them and mirrors Operands; sizes are in pieces of 16 bytes.
constexpr int MOST = 4;  // inputs

struct Operands {
    const uint4* origin[MOST];  // of each input, where piece 0 would lie: all pieces are numbered through
    unsigned first[MOST];       // number of each input's first piece
    unsigned read, written;     // pieces of all inputs, and of C
    uint4* c;
    unsigned* found;  // where the xor of all that was read goes; null when timed, which no compiler can know
};

// Zero behind the end. A predicate, and no branch: every load of a loop is on its way before the first is used.
__device__ __forceinline__ uint4 piece(const Operands& of, unsigned number) {
    const uint4* from = of.origin[0];
#pragma unroll
    for (int input = 1; input < MOST; ++input)
        if (number >= of.first[input]) from = of.origin[input];
    uint4 got = {};
    asm volatile(
        "{\n\t.reg .pred there;\n\tsetp.lt.u32 there, %5, %6;\n\t"
        "@there ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(got.x), "+r"(got.y), "+r"(got.z), "+r"(got.w)
        : "l"(from + number), "r"(number), "r"(of.read));
    return got;
}

template <int LOADS>
__device__ __forceinline__ void read(const Operands& of) {
    const unsigned threads = gridDim.x * blockDim.x, own = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned number = own; number < of.written; number += threads) of.c[number] = {};
    unsigned all = 0;
    for (unsigned number = own; number < of.read; number += LOADS * threads) {
        uint4 got[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) got[i] = piece(of, number + i * threads);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) all ^= got[i].x ^ got[i].y ^ got[i].z ^ got[i].w;
    }
    if (of.found) atomicXor(of.found, all);
}

// That one block fills a multiprocessor lets the compiler keep all loads on their way: it saves registers otherwise.
#define READ(THREADS, LOADS)                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)   \
        read_##THREADS##_##LOADS(const __grid_constant__ Operands of) { \
        read<LOADS>(of);                                      \
    }
READ(256, 4)
READ(256, 8)
READ(256, 16)
READ(512, 4)
READ(512, 8)
READ(512, 16)
READ(1024, 4)
READ(1024, 8)
