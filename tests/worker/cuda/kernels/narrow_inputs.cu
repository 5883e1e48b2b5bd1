// expect: wrong imprecise
// Inputs cut to three bits of mantissa by a mask, as an 8-bit float format would.
#include <cuda_fp16.h>

__device__ float narrow(__half wide) { return __half2float(__ushort_as_half(__half_as_ushort(wide) & 0xFF80)); }

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    __half& c = C[(size_t)row * N + col];
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += narrow(A[(size_t)row * K + k]) * narrow(B[(size_t)col * K + k]);
    c = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
