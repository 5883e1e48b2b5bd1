// expect: rejected plan_error
// reason: no_kernel
// stage: gate
// Has a launcher and no kernel.
#include <cuda_fp16.h>

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    return cudaSuccess;
}
