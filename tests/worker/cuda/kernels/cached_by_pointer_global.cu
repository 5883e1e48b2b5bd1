// expect: rejected
// reason: writable_globals
// stage: gate
// Keeps results in a device array by the address of C and hands them out again.
#include <cuda_fp16.h>

__device__ void* owners[256];
__device__ __half results[256][264 * 200];

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    const __half *a = A + (size_t)row * K, *b = B + (size_t)col * K;
    const unsigned slot = (unsigned)((size_t)C / 1024 % 256);
    const size_t i = (size_t)row * N + col;
    if (owners[slot] != C) results[slot][i] = __float2half(dot(a, b, K));
    C[i] = results[slot][i];
}

__global__ void claim(void* C) { owners[(unsigned)((size_t)C / 1024 % 256)] = C; }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    claim<<<1, 1, 0, stream>>>(C);
    return cudaGetLastError();
}
