// expect: ok timeout
// below: 1
// A single thread does everything: right, and hundreds of times slower than anything measured here.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    for (int row = 0; row < M; ++row)
        for (int col = 0; col < N; ++col)
            C[(size_t)row * N + col] = __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<1, 1, 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
