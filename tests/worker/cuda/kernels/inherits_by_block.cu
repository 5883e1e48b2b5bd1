// expect: rejected
// reason: unwritten_register
// stage: gate
// Reads a register that it never wrote and that has the name of another, which it did write, in a block beside.
#include <cuda_fp16.h>
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, unsigned* out) {
    unsigned x[2];
    asm volatile("{ .reg .b32 z; mov.u32 z, 0; mov.u32 %0, z; }" : "=r"(x[1]));
    asm volatile("{ .reg .b32 z; mov.u32 %0, z; }" : "=r"(x[0]));
    out[threadIdx.x] = x[0] + x[1];
}
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace, cudaStream_t stream) {
    multiply<<<1,32,0,stream>>>(A, B, C, M, N, K, (unsigned*)workspace);
    return cudaGetLastError();
}
