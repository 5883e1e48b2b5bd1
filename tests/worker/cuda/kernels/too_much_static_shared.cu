// expect: compile_error
// stage: build
// Declares more static shared memory than the assembler allows.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    __shared__ float tile[75000];
    tile[threadIdx.y * 16 + threadIdx.x] = __half2float(A[col]);
    __syncthreads();
    C[(size_t)row * N + col] = __float2half(tile[M % 75000]);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
