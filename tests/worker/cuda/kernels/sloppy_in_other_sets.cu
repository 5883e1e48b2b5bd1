// expect: imprecise wrong
// Right for the first two sets of buffers, as the launcher counts its calls while it is recorded; for the others one
// result in 25 is wrong in its last digit, which is less than two honest results may differ by.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K, bool exact) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    const __half c = __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
    const bool sloppy = !exact && ((row * 2654435761u ^ col * 2246822519u) >> 8) % 25 == 0;
    C[(size_t)row * N + col] = __ushort_as_half(__half_as_ushort(c) ^ sloppy);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    static int call = 0;
    multiply<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16), 0, stream>>>(A, B, C, M, N, K, call++ < 2);
    return cudaGetLastError();
}
