// expect: rejected
// stage: source
// Names a file of the host in a line directive of PTX.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    asm volatile(".file 7 \"/etc/passwd\"\n.loc 7 1 1;");
    C[(size_t)row * N + col] = A[0];
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
