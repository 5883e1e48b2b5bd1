// expect: ok
// Control: semaphores are used as counters and cleared by a memset of the workspace's head at the end.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, unsigned* counter) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    atomicAdd(counter, 1);
    C[(size_t)row * N + col] = __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

extern "C" size_t hgemm_workspace(int M, int N, int K) { return 16 << 10; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    const dim3 blocks((N + 15) / 16, (M + 15) / 16), threads(16, 16);
    multiply<<<blocks, threads, 0, stream>>>(A, B, C, M, N, K, (unsigned*)workspace);
    cudaMemsetAsync(workspace, 0, 16 << 10, stream);
    return cudaGetLastError();
}
