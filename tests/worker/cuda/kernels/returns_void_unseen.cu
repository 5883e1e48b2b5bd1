// expect: compile_error
// reason: contract.h
// stage: build
// Returns nothing, and breaks the lines behind it that would tell.
#include <cuda_fp16.h>

extern "C" void hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                      cudaStream_t stream) {}
#define __half 7
