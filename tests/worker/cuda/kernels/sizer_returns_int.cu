// expect: compile_error
// reason: hgemm_workspace must return size_t; the contract declares extern "C" size_t hgemm_workspace(int M
// stage: build
// Asks for workspace by a function of another type.
#include <cuda_fp16.h>

extern "C" int hgemm_workspace(int M, int N, int K) { return M; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    return cudaSuccess;
}
