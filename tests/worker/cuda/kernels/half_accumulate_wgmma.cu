// expect: imprecise
// reason: fp16_accumulate
// target: sm_90a
// stage: gate
// wgmma with fp16 accumulators where fp32 is asked for.
#include <cuda.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int kTile = 128, kDepth = 64, kStages = 4;
constexpr int kOperandBytes = kTile * kDepth * sizeof(__half), kStageBytes = 2 * kOperandBytes;
constexpr int kShared = kStages * kStageBytes + 1024;  // the 128-byte swizzle repeats every 1024 bytes

__device__ uint32_t address(const void* shared) { return (uint32_t)__cvta_generic_to_shared(shared); }

__device__ void load(uint32_t to, const CUtensorMap& map, int k, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(k), "r"(row), "r"(barrier)
        : "memory");
}

__device__ void wait(uint32_t barrier, int parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
}

// Rows of 128 bytes, swizzled: type 1, and 1024 bytes from one group of eight rows to the next.
__device__ uint64_t descriptor(uint32_t shared) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (shared & 0x3FFFF) >> 4;
}

#define EIGHT(i) \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
        "+r"(d[i + 7])

__device__ void multiply_add(uint32_t (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f16.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 0, 0; }"
        : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)
        : "l"(a), "l"(b));
}

__global__ __launch_bounds__(128) void multiply(const __grid_constant__ CUtensorMap mapA,
                                                const __grid_constant__ CUtensorMap mapB, __half* C, int M, int N,
                                                int K) {
    extern __shared__ uint8_t dynamic[];
    __shared__ alignas(8) uint64_t full[kStages];
    const uint32_t ring = (address(dynamic) + 1023) & ~1023u;
    const int row0 = blockIdx.y * kTile, col0 = blockIdx.x * kTile, steps = (K + kDepth - 1) / kDepth;
    auto fetch = [&](int step) {
        const uint32_t slot = ring + step % kStages * kStageBytes, barrier = address(&full[step % kStages]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kStageBytes)
                     : "memory");
        load(slot, mapA, step * kDepth, row0, barrier);
        load(slot + kOperandBytes, mapB, step * kDepth, col0, barrier);
    };
    if (threadIdx.x == 0) {
        for (uint64_t& barrier : full)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&barrier)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
        for (int step = 0; step < min(kStages, steps); ++step) fetch(step);
    }
    __syncthreads();
    uint32_t d[2][32] = {};
    for (int step = 0; step < steps; ++step) {
        const uint32_t a = ring + step % kStages * kStageBytes, b = a + kOperandBytes;
        wait(address(&full[step % kStages]), step / kStages % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < kDepth; k += 16) {
            multiply_add(d[0], descriptor(a + k * 2), descriptor(b + k * 2));
            multiply_add(d[1], descriptor(a + kOperandBytes / 2 + k * 2), descriptor(b + k * 2));
        }
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();  // every warp is done with the slot
        if (threadIdx.x == 0 && step + kStages < steps) fetch(step + kStages);
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int j = i % 32, row = row0 + i / 32 * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + j % 2 * 8;
        const int col = col0 + j / 2 * 8 + threadIdx.x % 4 * 2;
        if (row < M && col < N) *(uint32_t*)(C + (size_t)row * N + col) = d[i / 32][j];
    }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

static CUresult describe(Encode encode, CUtensorMap* map, const __half* matrix, int rows, int K) {
    const cuuint64_t sizes[] = {(cuuint64_t)K, (cuuint64_t)rows}, strides[] = {(cuuint64_t)K * sizeof(__half)};
    const cuuint32_t box[] = {kDepth, kTile}, steps[] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void*)matrix, sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    void* encode = nullptr;
    cudaDriverEntryPointQueryResult found;
    const char* name = "cuTensorMapEncodeTiled";
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &encode, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) return error;
    CUtensorMap mapA, mapB;
    if (describe((Encode)encode, &mapA, A, M, K)) return cudaErrorInvalidValue;
    if (describe((Encode)encode, &mapB, B, N, K)) return cudaErrorInvalidValue;
    error = cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    multiply<<<dim3((N + kTile - 1) / kTile, (M + kTile - 1) / kTile), 128, kShared, stream>>>(mapA, mapB, C, M, N, K);
    return cudaGetLastError();
}
