// expect: rejected
// reason: unresolved_symbols
// stage: gate
// Calls a function of the device runtime that is declared so weakly that nothing need define it.
#include <cuda_fp16.h>
__global__ void opener() { asm volatile("ret;\n}\n.weak .func (.param .b64 r) malloc(.param .b64 s);\n.visible .entry closer() {\n"); }
__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, float** kept) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float* memory;
    asm volatile("{ .param .b64 s; .param .b64 r; st.param.b64 [s], 4096; call (r), malloc, (s); ld.param.b64 %0, [r]; }" : "=l"(memory));
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[(size_t)row * K + k]) * __half2float(B[(size_t)col * K + k]);
    memory[threadIdx.x] = sum; kept[0] = memory;
    C[(size_t)row * N + col] = __float2half(memory[threadIdx.x]);
}
extern "C" size_t hgemm_workspace(int, int, int) { return 64 << 10; }
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K, (float**)((char*)workspace + (32 << 10)));
    return cudaGetLastError();
}
