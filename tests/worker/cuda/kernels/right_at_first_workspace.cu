// expect: wrong ok
// below: 1
// Right for the first launch since the workspace was last renewed, as a word in it tells; zeros afterwards. If it
// passes, it was never right at less cost.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, const unsigned* calls) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    const __half *a = A + (size_t)row * K, *b = B + (size_t)col * K;
    __half& c = C[(size_t)row * N + col];
    c = *calls != 1 ? __float2half(dot(a, b, K)) : __half(0.0f);
}

__global__ void count(unsigned* calls) { *calls = 1; }

extern "C" size_t hgemm_workspace(int M, int N, int K) { return 32 << 10; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    unsigned* calls = (unsigned*)workspace + 6000;
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K, calls);
    count<<<1, 1, 0, stream>>>(calls);
    return cudaGetLastError();
}
