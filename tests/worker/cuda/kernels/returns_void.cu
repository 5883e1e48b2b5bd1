// expect: compile_error
// reason: hgemm must return cudaError_t; the contract declares extern "C" cudaError_t hgemm(const __half* A
// stage: build
// Returns nothing.
#include <cuda_fp16.h>

extern "C" void hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                      cudaStream_t stream) {}
