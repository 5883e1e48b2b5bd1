// expect: plan_error rejected
// Looks for the network.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    C[(size_t)row * N + col] = __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

extern "C" int socket(int, int, int);
extern "C" int connect(int, const void*, unsigned);

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    const int file = socket(2, 1, 0);  // AF_INET, SOCK_STREAM
    const struct { short family; unsigned short port; unsigned address; char rest[8]; } peer{2, 0x3500, 0x08080808, {}};
    if (file < 0 || connect(file, &peer, sizeof peer)) return cudaErrorNotPermitted;
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
    return cudaGetLastError();
}
