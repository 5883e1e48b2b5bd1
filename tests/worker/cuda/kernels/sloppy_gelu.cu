// expect: imprecise wrong
// problem: 1_200_328_tn_f32_bf16_bias_gelu 2_200_328_tn_f32_bf16_bias_gelu 3_200_328_tn_f32_bf16_bias_gelu 7_200_328_tn_f32_bf16_bias_gelu 17_200_328_tn_f32_bf16_bias_gelu 100_200_328_tn_f32_bf16_bias_gelu
// GELU by a sigmoid, which is off by up to 0.02.
#include <cuda_bf16.h>
#include <stdint.h>

__device__ uint32_t pair(const __nv_bfloat16* matrix, int row, int k, int rows, int K) {
    return row < rows && k < K ? *(const uint32_t*)(matrix + (size_t)row * K + k) : 0;
}

__device__ float finish(float x) { return x / (1 + __expf(-1.702f * x)); }

__global__ void multiply(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C,
                         int M, int N, int K) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
    const int col0 = (blockIdx.x * 4 + threadIdx.x / 32) * 8, row0 = blockIdx.y * 16;
    float d[4] = {};
    for (int k = 0; k < K; k += 16) {
        const uint32_t a0 = pair(A, row0 + g, k + t, M, K), a1 = pair(A, row0 + g + 8, k + t, M, K);
        const uint32_t a2 = pair(A, row0 + g, k + t + 8, M, K), a3 = pair(A, row0 + g + 8, k + t + 8, M, K);
        const uint32_t b0 = pair(B, col0 + g, k + t, N, K), b1 = pair(B, col0 + g, k + t + 8, N, K);
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    const int col = col0 + t;
    for (int half = 0; half < 2; ++half) {
        const int row = row0 + g + 8 * half;
        if (row >= M || col >= N) continue;
        const float x = finish(d[2 * half] + __bfloat162float(bias[col]));
        const float y = finish(d[2 * half + 1] + __bfloat162float(bias[col + 1]));
        *(__nv_bfloat162*)(C + (size_t)row * N + col) = __floats2bfloat162_rn(x, y);
    }
}

extern "C" cudaError_t hgemm(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C,
                             int M, int N, int K, void* workspace, cudaStream_t stream) {
    multiply<<<dim3((N + 31) / 32, (M + 15) / 16), 128, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
