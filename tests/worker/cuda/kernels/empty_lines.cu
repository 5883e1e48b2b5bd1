// expect: ok
// Control: an honest product whose PTX has 300,000 empty lines, over which no reader may stumble.
#include <cuda_fp16.h>
#define TEN(x) x x x x x x x x x x
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    asm volatile(TEN(TEN(TEN(TEN(TEN("\n\n\n"))))));
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k)
        sum += __half2float(A[(size_t)row * K + k]) * __half2float(B[(size_t)col * K + k]);
    C[(size_t)row * N + col] = __float2half(sum);
}
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
