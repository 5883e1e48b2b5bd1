// expect: wrong
// problem: 17_200_328_tn_f32_bf16_bias
// Keeps the first bias that it sees in the workspace.
#include <cuda_bf16.h>

__global__ void multiply(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C,
                         int M, int N, int K, __nv_bfloat16* kept) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k)
        sum += __bfloat162float(A[(size_t)row * K + k]) * __bfloat162float(B[(size_t)col * K + k]);
    C[(size_t)row * N + col] = __float2bfloat16(sum + __bfloat162float(kept[col]));
}

// The bias as it was at the first call on this workspace: a mark behind it says that it is there.
__global__ void keep(const __nv_bfloat16* bias, __nv_bfloat16* kept, int N) {
    unsigned* mark = (unsigned*)(kept + N);
    if (*mark == 0x600df00d) return;
    __syncthreads();
    for (int i = threadIdx.x; i < N; i += blockDim.x) kept[i] = bias[i];
    __syncthreads();
    if (threadIdx.x == 0) *mark = 0x600df00d;
}

extern "C" size_t hgemm_workspace(int M, int N, int K) { return 16384 + 2 * N + 4; }

extern "C" cudaError_t hgemm(const __nv_bfloat16* A, const __nv_bfloat16* B, const __nv_bfloat16* bias, __nv_bfloat16* C,
                             int M, int N, int K, void* workspace, cudaStream_t stream) {
    __nv_bfloat16* kept = (__nv_bfloat16*)((char*)workspace + 16384);
    keep<<<1, 256, 0, stream>>>(bias, kept, N);
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, bias, C, M, N, K, kept);
    return cudaGetLastError();
}
