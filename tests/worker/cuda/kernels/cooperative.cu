// expect: ok plan_error
// Control: a cooperative launch with a grid-wide barrier: replayed rightly, or refused while planning.
#include <cooperative_groups.h>
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, float* partial) {
    const size_t size = (size_t)M * N, first = (size_t)blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    const int middle = K / 16 * 8;
    for (size_t i = first; i < 2 * size; i += step) {
        const size_t row = i % size / N, col = i % size % N;
        const int start = i < size ? 0 : middle, stop = i < size ? middle : K;
        partial[i] = dot(A + row * K + start, B + col * K + start, stop - start);
    }
    cooperative_groups::this_grid().sync();
    for (size_t i = first; i < size; i += step) C[i] = __float2half(__ldcg(partial + i) + __ldcg(partial + size + i));
}

extern "C" size_t hgemm_workspace(int M, int N, int K) { return (16 << 10) + (size_t)M * N * 2 * sizeof(float); }

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    float* partial = (float*)((char*)workspace + (16 << 10));
    void* arguments[] = {&A, &B, &C, &M, &N, &K, &partial};
    return cudaLaunchCooperativeKernel((const void*)multiply, 32, 256, arguments, 0, stream);
}
