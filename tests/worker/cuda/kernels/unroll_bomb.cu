// expect: compile_timeout compile_error timeout
// stage: build
// Loops within loops, all unrolled.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < 256; ++i)
    #pragma unroll
    for (int j = 0; j < 256; ++j)
    #pragma unroll
    for (int k = 0; k < 256; ++k)
    #pragma unroll
    for (int l = 0; l < 256; ++l)
        sum = sum * (float)(i + 3 * j) + __half2float(A[(row + k * l + i) % M]);
    C[(size_t)row * N + col] = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
