// expect: ok
// Control: a few static bytes beside 48 KB of dynamic shared memory, then another launch of the kernel with less.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, int top, int depth) {
    extern __shared__ __half rows[];
    __shared__ int column;
    const int row = top + blockIdx.y;
    if (threadIdx.x == 0) column = blockIdx.x * blockDim.x;
    float sum = 0;
    for (int start = 0; start < K; start += depth) {
        __syncthreads();
        for (int k = threadIdx.x; k < depth && start + k < K; k += blockDim.x) rows[k] = A[(size_t)row * K + start + k];
        __syncthreads();
        const int n = column + threadIdx.x;
        for (int k = 0; n < N && k < depth && start + k < K; ++k)
            sum += __half2float(rows[k]) * __half2float(B[(size_t)n * K + start + k]);
    }
    if (column + threadIdx.x < N) C[(size_t)row * N + column + threadIdx.x] = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    const int most = 48 << 10, less = 1 << 10, half = M / 2;
    cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    multiply<<<dim3((N + 127) / 128, half), 128, most, stream>>>(A, B, C, M, N, K, 0, most / 2);
    multiply<<<dim3((N + 127) / 128, M - half), 128, less, stream>>>(A, B, C, M, N, K, half, less / 2);
    return cudaGetLastError();
}
