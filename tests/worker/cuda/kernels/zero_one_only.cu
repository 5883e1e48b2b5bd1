// expect: wrong
// Counts the products that are not zero: right for inputs of zeros and ones.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    __half& c = C[(size_t)row * N + col];
    int count = 0;
    for (int k = 0; k < K; ++k)
        count += __half2float(A[(size_t)row * K + k]) != 0.0f && __half2float(B[(size_t)col * K + k]) != 0.0f;
    c = __float2half((float)count);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
