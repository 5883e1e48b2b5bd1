// expect: rejected
// reason: writable_globals
// stage: gate
// Right for the first eight launches, as a device variable counts them; zeros afterwards.
#include <cuda_fp16.h>

__device__ unsigned calls;

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    const __half *a = A + (size_t)row * K, *b = B + (size_t)col * K;
    __half& c = C[(size_t)row * N + col];
    c = calls < 8 ? __float2half(dot(a, b, K)) : __half(0.0f);
}

__global__ void count() { ++calls; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    count<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}
