// expect: imprecise
// problem: 256_256_1024_tn_f16
// An fp16 sum rounded after every product is worse than the fp16 accumulator of a matrix instruction, and than an f16
// problem allows.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    __half sum(0.0f);
    for (int k = 0; k < K; ++k) sum = __hfma(A[(size_t)row * K + k], B[(size_t)col * K + k], sum);
    C[(size_t)row * N + col] = sum;
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
