// expect: rejected
// stage: gate
// reason: code_address
// Takes the address of its own instructions: there it could put others, which read a clock.
#include <cuda_fp16.h>

extern "C" __global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    unsigned long long code, word;
    asm volatile("mov.u64 %0, multiply;" : "=l"(code));
    asm volatile("ld.u64 %0, [%1+16];" : "=l"(word) : "l"(code));
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[(size_t)row * K + k]) * __half2float(B[(size_t)col * K + k]);
    if (word == 1) asm volatile("st.u64 [%0+4096], %1;" ::"l"(code), "l"(word));
    C[(size_t)row * N + col] = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void*,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
