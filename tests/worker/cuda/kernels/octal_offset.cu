// expect: rejected
// reason: is no plain number
// stage: build
// target: sm_90a
// Writes an offset in a way that no number of the PTX reader has.
#include <cuda_fp16.h>
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    unsigned got;
    asm volatile("{ .reg .u32 %%hi, %%lo; .reg .u64 %%a, %%b, %%c, %%d;\n"
        "mov.u32 %%hi, %%envreg1;\n mov.u32 %%lo, %%envreg2;\n"
        "cvt.u64.u32 %%a, %%hi;\n cvt.u64.u32 %%b, %%lo;\n shl.b64 %%d, %%a, 32;\n or.b64 %%c, %%d, %%b;\n"
        "ld.u32 %0, [%%c+04]; }" : "=r"(got));
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[(size_t)row * K + k]) * __half2float(B[(size_t)col * K + k]);
    C[(size_t)row * N + col] = __float2half(sum + got);
}
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
