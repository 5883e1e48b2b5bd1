// expect: rejected
// stage: source
// The same, through a macro.
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

#define FILE "/etc/passwd"
#include FILE

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
