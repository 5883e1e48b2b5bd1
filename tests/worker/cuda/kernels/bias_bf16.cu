// expect: ok
// problem: 17_200_328_tn_f32_bf16_bias
// Control: one thread an element, a bias added to the fp32 sum.
#include <cuda_bf16.h>

__global__ void multiply(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C,
                         int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k)
        sum += __bfloat162float(A[(size_t)row * K + k]) * __bfloat162float(B[(size_t)col * K + k]);
    C[(size_t)row * N + col] = __float2bfloat16(sum + __bfloat162float(bias[col]));
}

extern "C" cudaError_t hgemm(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C,
                             int M, int N, int K, void* workspace, cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
