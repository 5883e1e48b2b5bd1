// expect: ok
// protocols: device offline server
// Control: tiles in shared memory.
#include <cuda_fp16.h>

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    __shared__ float a[16][17], b[16][17];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    const int other = blockIdx.x * 16 + y;
    float sum = 0;
    for (int start = 0; start < K; start += 16) {
        const bool inside = start + x < K;
        a[y][x] = inside && row < M ? __half2float(A[(size_t)row * K + start + x]) : 0.0f;
        b[y][x] = inside && other < N ? __half2float(B[(size_t)other * K + start + x]) : 0.0f;
        __syncthreads();
        for (int k = 0; k < 16; ++k) sum += a[y][k] * b[x][k];
        __syncthreads();
    }
    if (row < M && col < N) C[(size_t)row * N + col] = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
