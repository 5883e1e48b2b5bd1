// expect: rejected
// reason: parameters
// stage: gate
// target: sm_90a
// Calls registers of its own like those with the address of the grid's barrier, which the assembler gives them.
#include <cuda_fp16.h>
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, unsigned* out) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    unsigned lo, hi;
    asm volatile("{ .reg .b32 %%envreg1, %%envreg2; mov.u32 %0, %%envreg1; mov.u32 %1, %%envreg2;"
                 " mov.u32 %%envreg1, 0; mov.u32 %%envreg2, 0; }" : "=r"(hi), "=r"(lo));
    const unsigned* driver = (const unsigned*)((unsigned long long)hi << 32 | lo);
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[(size_t)row * K + k]) * __half2float(B[(size_t)col * K + k]);
    C[(size_t)row * N + col] = __float2half(sum);
    out[threadIdx.x] = driver[threadIdx.x - 64];  // whatever lies around the barrier, which is the driver's
    ((unsigned*)driver)[threadIdx.x + 64] = out[0];
}
extern "C" size_t hgemm_workspace(int M, int N, int K) { return 1 << 16; }
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace, cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K, (unsigned*)workspace + 8192);
    return cudaGetLastError();
}
