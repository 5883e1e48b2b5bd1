// expect: rejected
// reason: driver_word
// stage: gate
// Remembers in constant memory, of which it has the compiler forget that it is constant, that it was launched before;
// zeros from then on.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__constant__ unsigned told = 0;

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    unsigned long long address = (unsigned long long)&told;
    asm volatile("" : "+l"(address));
    volatile unsigned* left = (volatile unsigned*)address;
    const bool seen = *left >= 16;
    if (row + col == 0) *left = *left + 1;
    C[(size_t)row * N + col] = seen ? __half(0.0f) : __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
