// expect: ok
// Control: 96 KB of dynamic shared memory, more than a kernel gets without asking.
#include <cuda_fp16.h>

constexpr int kRows = 16, kDepth = 1536, kBytes = 2 * kRows * kDepth * sizeof(__half);

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    extern __shared__ __half tile[];
    __half *a = tile, *b = tile + kRows * kDepth;
    const int row0 = blockIdx.y * kRows, col0 = blockIdx.x * kRows, x = threadIdx.x % 16, y = threadIdx.x / 16;
    float sum = 0;
    for (int start = 0; start < K; start += kDepth) {
        const int depth = min(kDepth, K - start);
        for (int i = threadIdx.x; i < kRows * kDepth; i += 256) {
            const int row = row0 + i / kDepth, col = col0 + i / kDepth, k = i % kDepth;
            a[i] = row < M && k < depth ? A[(size_t)row * K + start + k] : __half(0.0f);
            b[i] = col < N && k < depth ? B[(size_t)col * K + start + k] : __half(0.0f);
        }
        __syncthreads();
        for (int k = 0; k < depth; ++k) sum += __half2float(a[y * kDepth + k]) * __half2float(b[x * kDepth + k]);
        __syncthreads();
    }
    if (row0 + y < M && col0 + x < N) C[(size_t)(row0 + y) * N + col0 + x] = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), 256, kBytes, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
