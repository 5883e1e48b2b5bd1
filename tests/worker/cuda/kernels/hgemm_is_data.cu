// expect: rejected
// stage: build
// Exports bytes under the name of the function.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    C[(size_t)row * N + col] = __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

extern "C" const char hgemm[16] = {1};  // hgemm (
