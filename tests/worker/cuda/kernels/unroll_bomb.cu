// expect: compile_timeout compile_error timeout
// stage: build
// Loops within loops, all unrolled, many times over: one alone is given up by the compiler after half a minute or less.
#include <cuda_fp16.h>

template <int Seed>
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < 256; ++i)
    #pragma unroll
    for (int j = 0; j < 256; ++j)
    #pragma unroll
    for (int k = 0; k < 256; ++k)
    #pragma unroll
    for (int l = 0; l < 256; ++l)
        sum = sum * (float)(i + 3 * j) + __half2float(A[(row + k * l + i + Seed) % M]);
    C[(size_t)row * N + col] = __float2half(sum);
}

using Kernel = void (*)(const __half*, const __half*, __half*, int, int, int);

template <int... Seeds>
struct Many {
    static constexpr Kernel all[] = {multiply<Seeds>...};
};

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    const Kernel* kernels = Many<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>::all;
    kernels[M % 16]<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
