// expect: ok
// Control: fp16 inputs are exact in TF32, whose mma.sync keeps fp32 accumulators.
#include <cuda_fp16.h>
#include <stdint.h>

__device__ uint32_t tf32(const __half* matrix, int row, int k, int rows, int K) {
    return __float_as_uint(row < rows ? __half2float(matrix[(size_t)row * K + k]) : 0.0f);
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int col0 = (blockIdx.x * 4 + threadIdx.x / 32) * 8, row0 = blockIdx.y * 16;
    float d[4] = {};
    for (int k = 0; k < K; k += 8) {
        const uint32_t a0 = tf32(A, row0 + g, k + t, M, K), a1 = tf32(A, row0 + g + 8, k + t, M, K);
        const uint32_t a2 = tf32(A, row0 + g, k + t + 4, M, K), a3 = tf32(A, row0 + g + 8, k + t + 4, M, K);
        const uint32_t b0 = tf32(B, col0 + g, k + t, N, K), b1 = tf32(B, col0 + g, k + t + 4, N, K);
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    const int col = col0 + 2 * t;
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + g + 8 * half;
        if (row >= M || col >= N) continue;
        *(__half2*)(C + (size_t)row * N + col) = __floats2half2_rn(d[2 * half], d[2 * half + 1]);
    }
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 31) / 32, (M + 15) / 16), 128, 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
