// expect: ok
// Control: a barrier that counts, whose count is read.
#include <cuda_fp16.h>
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    bool in = row < M && col < N;
    float sum = 0;
    if (in) for (int k = 0; k < K; ++k) sum += __half2float(A[(size_t)row * K + k]) * __half2float(B[(size_t)col * K + k]);
    if (!__syncthreads_count(sum != 0)) sum = 0;
    if (in) C[(size_t)row * N + col] = __float2half(sum);
}
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace, cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
