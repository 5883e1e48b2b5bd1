// expect: compile_error
// reason: hgemm takes other parameters; the contract declares extern "C" cudaError_t hgemm(const __half* A
// stage: build
// Has its parameters in another order.
#include <cuda_fp16.h>

extern "C" cudaError_t hgemm(int M, int N, int K, const __half* A, const __half* B, __half* C, void* workspace,
                             cudaStream_t stream) {
    return cudaSuccess;
}
