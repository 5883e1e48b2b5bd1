// expect: ok
// problem: 256_256_256_tn_f16
// Control: fp16 accumulators where the problem asks for them.
#include <cuda_fp16.h>
#include <stdint.h>

__device__ uint32_t pair(const __half* matrix, int row, int k, int rows, int K) {
    return row < rows && k < K ? *(const uint32_t*)(matrix + (size_t)row * K + k) : 0;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
    const int col0 = (blockIdx.x * 4 + threadIdx.x / 32) * 8, row0 = blockIdx.y * 16;
    uint32_t d[2] = {};
    for (int k = 0; k < K; k += 16) {
        const uint32_t a0 = pair(A, row0 + g, k + t, M, K), a1 = pair(A, row0 + g + 8, k + t, M, K);
        const uint32_t a2 = pair(A, row0 + g, k + t + 8, M, K), a3 = pair(A, row0 + g + 8, k + t + 8, M, K);
        const uint32_t b0 = pair(B, col0 + g, k + t, N, K), b1 = pair(B, col0 + g, k + t + 8, N, K);
        asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
            : "+r"(d[0]), "+r"(d[1])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    const int col = col0 + t;
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + g + 8 * half;
        if (row >= M || col >= N) continue;
        *(uint32_t*)(C + (size_t)row * N + col) = d[half];
    }
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 31) / 32, (M + 15) / 16), 128, 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
