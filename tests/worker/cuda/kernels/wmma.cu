// expect: ok
// Control: WMMA fragments with fp32 accumulators, a warp a tile, edges filled with zeros.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda::wmma;

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    __shared__ __align__(32) __half a[256], b[256];
    __shared__ __align__(32) float c[256];
    const int row0 = blockIdx.y * 16, col0 = blockIdx.x * 16;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    for (int start = 0; start < K; start += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            const int row = row0 + i / 16, col = col0 + i / 16, k = start + i % 16;
            a[i] = row < M && k < K ? A[(size_t)row * K + k] : __half(0.0f);
            b[i] = col < N && k < K ? B[(size_t)col * K + k] : __half(0.0f);
        }
        __syncwarp();
        load_matrix_sync(left, a, 16);
        load_matrix_sync(right, b, 16);
        mma_sync(sum, left, right, sum);
        __syncwarp();
    }
    store_matrix_sync(c, sum, 16, mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) {
        const int row = row0 + i / 16, col = col0 + i % 16;
        if (row < M && col < N) C[(size_t)row * N + col] = __float2half(c[i]);
    }
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), 32, 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
