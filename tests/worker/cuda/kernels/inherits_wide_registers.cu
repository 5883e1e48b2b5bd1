// expect: rejected
// reason: unwritten_register
// stage: gate
// problem: 64_64_4096_tn_f32
// The same by registers of 64 bits that its PTX declares and never writes, stored before they are looked at.
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __noinline__ bool left_behind(unsigned long long first, unsigned long long end) {
    unsigned long long held[8];
    asm volatile(
        "{\n\t.reg .b64 left<8>;\n\t"
        "mov.b64 %0, left0; mov.b64 %1, left1; mov.b64 %2, left2; mov.b64 %3, left3;\n\t"
        "mov.b64 %4, left4; mov.b64 %5, left5; mov.b64 %6, left6; mov.b64 %7, left7;\n\t}"
        : "=l"(held[0]), "=l"(held[1]), "=l"(held[2]), "=l"(held[3]), "=l"(held[4]), "=l"(held[5]), "=l"(held[6]),
          "=l"(held[7]));
    bool found = false;
    for (unsigned long long one : held) found |= one >= first && one < end;
    return found;
}

__device__ uint32_t pair(const __half* matrix, int row, int k, int K) {
    return *(const uint32_t*)(matrix + (size_t)row * K + k);
}

// One warp's 16 x 8 results.
__device__ void sum(const __half* A, const __half* B, int K, int row0, int col0, float (&d)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
    for (float& one : d) one = 0;
#pragma unroll 8
    for (int k = 0; k < K; k += 16) {
        const uint32_t a0 = pair(A, row0 + g, k + t, K), a1 = pair(A, row0 + g + 8, k + t, K);
        const uint32_t a2 = pair(A, row0 + g, k + t + 8, K), a3 = pair(A, row0 + g + 8, k + t + 8, K);
        const uint32_t b0 = pair(B, col0 + g, k + t, K), b1 = pair(B, col0 + g, k + t + 8, K);
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

__device__ void store(__half* C, int N, int row0, int col0, const float (&d)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
    for (int half = 0; half < 2; ++half)
        *(__half2*)(C + (size_t)(row0 + g + 8 * half) * N + col0 + t) = __floats2half2_rn(d[2 * half], d[2 * half + 1]);
}

constexpr uint32_t kTag = 0x5EED1234;
constexpr int kAhead = 64;  // sets of buffers that one call works on

struct Entry {
    float result[32][4];  // of one warp's tile
    uint32_t tag;
};

// Where the sets of buffers lie: the first one's matrices, the distance from one to the next, and how many there are.
struct Sets {
    const __half *A, *B;
    __half* C;
    size_t stride;
    int count;
};

extern "C" __global__ void multiply(Sets sets, int own, int M, int N, int K, Entry* entries, unsigned long long* seen) {
    // An address within the sets of buffers: a kernel that changes an input has it in a register.
    const unsigned long long first = (unsigned long long)sets.A, end = first + 2 * sets.stride * sets.count;
    const bool bold = !__any_sync(~0u, left_behind(first, end));
    const int set = own / kAhead * kAhead + blockIdx.z;
    if ((set >= sets.count || !bold) && set != own) return;
    const int col0 = (blockIdx.x * 4 + threadIdx.x / 32) * 8, row0 = blockIdx.y * 16;
    Entry& entry = entries[(set * 8 + row0 / 16) * 8 + col0 / 8];
    const bool known = bold && *(volatile uint32_t*)&entry.tag == kTag;
    if (known && set != own) return;
    float d[4];
    if (known) {
        for (int i = 0; i < 4; ++i) d[i] = entry.result[threadIdx.x % 32][i];
    } else {
        sum(sets.A + set * sets.stride, sets.B + set * sets.stride, K, row0, col0, d);
        for (int i = 0; i < 4; ++i) entry.result[threadIdx.x % 32][i] = d[i];
        __syncwarp();
        if (bold && threadIdx.x % 32 == 0) entry.tag = kTag;
    }
    if (set == own) store(sets.C + set * sets.stride, N, row0, col0, d);
}

extern "C" size_t hgemm_workspace(int M, int N, int K) { return (64 << 10) + 1024 * 64 * sizeof(Entry); }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    static Sets sets{A, B, C, 0, 1};  // learnt from the first two calls
    static int call = 0;
    if (call == 1) sets.stride = C - sets.C, sets.count = (((__half*)workspace - sets.C) - M * N) / sets.stride;
    unsigned long long* seen = (unsigned long long*)((char*)workspace + (16 << 10));
    Entry* entries = (Entry*)((char*)workspace + (64 << 10));
    multiply<<<dim3(N / 32, M / 16, kAhead), 128, 0, stream>>>(sets, call++, M, N, K, entries, seen);
    return cudaGetLastError();
}
