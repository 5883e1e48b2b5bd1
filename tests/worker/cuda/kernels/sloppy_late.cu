// expect: imprecise wrong
// problem: 64_64_4096_tn_f32
// Cuts the last digit off in calls later than the twentieth since the workspace was poisoned, and there in some sets
// only.
#include <cuda_fp16.h>
#include <stdint.h>

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

__device__ void store(__half* C, int N, int row0, int col0, const float (&d)[4], uint32_t kept) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
    for (int half = 0; half < 2; ++half) {
        const __half2 both = __floats2half2_rn(d[2 * half], d[2 * half + 1]);
        *(uint32_t*)(C + (size_t)(row0 + g + 8 * half) * N + col0 + t) = *(const uint32_t*)&both & kept;
    }
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, int call, unsigned* calls) {
    const int col0 = (blockIdx.x * 4 + threadIdx.x / 32) * 8, row0 = blockIdx.y * 16;
    float d[4];
    sum(A, B, K, row0, col0, d);
    const unsigned before = *(volatile unsigned*)calls;
    const bool sloppy = call % 8 == 3 && before > 20 * gridDim.x * gridDim.y && before < 1u << 30;
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(calls, 1) >= 1u << 30) atomicExch(calls, 0);
    store(C, N, row0, col0, d, sloppy ? 0xFFFEFFFE : 0xFFFFFFFF);
}

extern "C" size_t hgemm_workspace(int M, int N, int K) { return 32 << 10; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    static int call = 0;  // once for each set
    unsigned* calls = (unsigned*)workspace + 6000;
    multiply<<<dim3(N / 32, M / 16), 128, 0, stream>>>(A, B, C, M, N, K, call++, calls);
    return cudaGetLastError();
}
