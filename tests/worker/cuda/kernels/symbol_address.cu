// expect: rejected out_of_bounds wrong
// Passes the address of a device variable as a parameter.
#include <cuda_fp16.h>

__device__ unsigned state[1024];

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

__global__ void count(unsigned* calls) { ++*calls; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    void* calls = nullptr;
    cudaGetSymbolAddress(&calls, state);
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    count<<<1, 1, 0, stream>>>((unsigned*)calls);
    return cudaGetLastError();
}
