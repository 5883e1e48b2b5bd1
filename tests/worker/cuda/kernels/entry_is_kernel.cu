// expect: compile_error
// reason: the contract declares extern "C" cudaError_t hgemm(const __half* A
// stage: build
// Is itself the kernel, without a launcher.
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row < M && col < N) C[(size_t)row * N + col] = __hmul(A[(size_t)row * K], B[(size_t)col * K]);
}
