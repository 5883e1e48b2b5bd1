// expect: wrong
// reason: input
// Counts its calls in an input of the set before its own, which its own call does not need; zeros after the eighth.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, unsigned* calls) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    const bool seen = calls && *calls - 0x5EED0000u > 8 && *calls - 0x5EED0000u < 0x10000;
    C[(size_t)row * N + col] = seen ? __half(0.0f) : __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

__global__ void count(unsigned* calls) {
    if (calls) *calls = *calls - 0x5EED0000u < 0x10000 ? *calls + 1 : 0x5EED0000u;
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    static const __half* before = A;
    unsigned* calls = before == A ? nullptr : (unsigned*)before;
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K, calls);
    count<<<1, 1, 0, stream>>>(calls);
    before = A;
    return cudaGetLastError();
}
