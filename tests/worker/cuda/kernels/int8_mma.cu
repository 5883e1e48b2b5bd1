// expect: rejected
// reason: integer_mma
// stage: gate
// An integer matrix instruction on inputs quantised to int8.
#include <cuda_fp16.h>

__device__ unsigned char narrow(float wide) { return max(-127, min(127, __float2int_rn(wide * 32))); }

__device__ unsigned four(const __half* matrix, int row, int k, int rows, int K) {
    unsigned packed = 0;
    for (int i = 0; i < 4 && row < rows && k + i < K; ++i)
        packed |= (unsigned)narrow(__half2float(matrix[(size_t)row * K + k + i])) << 8 * i;
    return packed;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int col0 = (blockIdx.x * 4 + threadIdx.x / 32) * 8, row0 = blockIdx.y * 16, col = col0 + 2 * t;
    int d[4] = {};
    for (int k = 0; k < K; k += 32) {
        const unsigned a0 = four(A, row0 + g, k + 4 * t, M, K), a1 = four(A, row0 + g + 8, k + 4 * t, M, K);
        const unsigned a2 = four(A, row0 + g, k + 4 * t + 16, M, K), a3 = four(A, row0 + g + 8, k + 4 * t + 16, M, K);
        const unsigned b0 = four(B, col0 + g, k + 4 * t, N, K), b1 = four(B, col0 + g, k + 4 * t + 16, N, K);
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    for (int i = 0; i < 4; ++i) {
        const int row = row0 + g + i / 2 * 8;
        if (row < M && col < N) C[(size_t)row * N + col + i % 2] = __float2half(d[i] * (1 / 1024.0f));
    }
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 31) / 32, (M + 15) / 16), 128, 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
