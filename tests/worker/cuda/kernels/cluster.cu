// expect: ok
// target: sm_90a
// Control: a cluster of two blocks shares the sum over k through distributed shared memory.
#include <cooperative_groups.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ float partial[256];
    const int size = cluster.num_blocks(), rank = cluster.block_rank();
    const int col = blockIdx.x / size * 16 + threadIdx.x % 16, row = blockIdx.y * 16 + threadIdx.x / 16;
    const int slice = (K / 8 + size - 1) / size * 8, start = min(K, rank * slice);
    const bool inside = row < M && col < N;
    if (inside)
        partial[threadIdx.x] = dot(A + (size_t)row * K + start, B + (size_t)col * K + start, min(slice, K - start));
    cluster.sync();
    float sum = 0;
    for (int other = 0; rank == 0 && other < size; ++other) sum += cluster.map_shared_rank(partial, other)[threadIdx.x];
    cluster.sync();  // the neighbours' shared memory must outlive the reading
    if (rank == 0 && inside) C[(size_t)row * N + col] = __float2half(sum);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    constexpr int kCluster = 2;
    cudaLaunchAttribute attribute{cudaLaunchAttributeClusterDimension};
    attribute.val.clusterDim = {kCluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3((N + 15) / 16 * kCluster, (M + 15) / 16);
    config.blockDim = 256;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, multiply, A, B, C, M, N, K);
}
