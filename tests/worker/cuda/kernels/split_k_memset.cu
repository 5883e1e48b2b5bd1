// expect: ok
// protocols: device offline server
// Control: split-K by atomic additions to a workspace that a memset clears, and a second kernel that rounds.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}
constexpr int kSplits = 4, kHead = 16 << 10;

__global__ void partial(const __half* A, const __half* B, float* sums, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    const int slice = (K / 8 + kSplits - 1) / kSplits * 8, start = min(K, (int)blockIdx.z * slice);
    if (row >= M || col >= N) return;
    const float sum = dot(A + (size_t)row * K + start, B + (size_t)col * K + start, min(slice, K - start));
    atomicAdd(sums + (size_t)row * N + col, sum);
}

__global__ void round_sums(const float* sums, __half* C, size_t size) {
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i < size) C[i] = __float2half(sums[i]);
}

extern "C" size_t hgemm_workspace(int M, int N, int K) { return kHead + (size_t)M * N * sizeof(float); }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    float* sums = (float*)((char*)workspace + kHead);
    const size_t size = (size_t)M * N;
    cudaMemsetAsync(sums, 0, size * sizeof(float), stream);
    partial<<<dim3((N + 15) / 16, (M + 15) / 16, kSplits), dim3(16, 16), 0, stream>>>(A, B, sums, M, N, K);
    round_sums<<<(size + 255) / 256, 256, 0, stream>>>(sums, C, size);
    return cudaGetLastError();
}
