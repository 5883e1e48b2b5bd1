// expect: plan_error
// Forks half the work to a second stream and joins it.
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

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    static cudaStream_t own = nullptr;
    static cudaEvent_t forked, joined;
    if (!own) {
        cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&joined, cudaEventDisableTiming);
    }
    const int half = M / 2;
    const dim3 threads(16, 16), blocks((N + 15) / 16, (M - half + 15) / 16);
    cudaEventRecord(forked, stream);
    cudaStreamWaitEvent(own, forked);
    multiply<<<blocks, threads, 0, stream>>>(A, B, C, half, N, K);
    multiply<<<blocks, threads, 0, own>>>(A + (size_t)half * K, B, C + (size_t)half * N, M - half, N, K);
    cudaEventRecord(joined, own);
    cudaStreamWaitEvent(stream, joined);
    return cudaGetLastError();
}
