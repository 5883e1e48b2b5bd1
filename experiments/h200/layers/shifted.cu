#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

// Rows of A and of B whose number is odd begin in the middle of a sector of 32 bytes, for K is 8 more than a multiple of 16.
// They are fetched from another k than even ones, so that every fetch is of whole sectors.
constexpr int BM = 128, BN = 128, BK = 64;
constexpr int WM = BM / 2, THREADS = 384;
constexpr int A_BYTES = BM * BK * 2, STAGE_BYTES = A_BYTES + BN * BK * 2;
constexpr int FITTING = (232448 - 2048) / (STAGE_BYTES + 16), STAGES = FITTING < 12 ? FITTING : 12;
constexpr int SMEM = 1024 + STAGES * STAGE_BYTES + 16 * STAGES;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// mbarriers: a phase ends once every arrival has been made and every announced byte has come in.
__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, int parity) {
    uint32_t over;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over) : "r"(bar), "r"(parity) : "memory");
    } while (!over);
}

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies one box of a matrix into shared memory and tells the barrier its bytes.
__device__ __forceinline__ void tma_load(const CUtensorMap& map, uint32_t to, uint32_t bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, { %3, %4}], [%2];"
                 ::"r"(to), "l"(&map), "r"(bar), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(0) : "memory"); }
// Keeps the compiler from moving reads of the sums to before the wait.
__device__ __forceinline__ void settle(float (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// How the tensor core finds B: address, stride and swizzle, in units of 16 bytes.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t from) {
    return (uint64_t)(from >> 4 & 0x3FFF) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
// d (64×64) = a (64×16) · b (16×64), added to what is in d if `add` is not 0.
__device__ __forceinline__ void wgmma(float (&d)[32], uint32_t (&a)[2][2], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, { %32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[1][0]), "r"(a[1][1]), "l"(b), "r"(add));
}
// 16 rows, two times eight k, as the tensor core wants A in registers.
__device__ __forceinline__ void load_rows(uint32_t (&a)[2][2], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
                 : "=r"(a[0][0]), "=r"(a[0][1]), "=r"(a[1][0]), "=r"(a[1][1]) : "r"(from) : "memory");
}

// The copy engine takes long to fill in what lies outside a matrix.
__device__ __forceinline__ int inside(int begin, int tile, int size) {
    return max(min(begin, size - tile), 0);
}

// A of one stage in registers: operands of sixteen k that begin with an even eight, with an odd one, and with the last
// eight, and the last sixteen, of the stage before.
struct Rows {
    uint32_t even[4][2][2], odd[3][2][2], across[2][2], last[2][2];
};
__device__ __forceinline__ void copy(uint32_t (&to)[2], const uint32_t (&from)[2]) { to[0] = from[0], to[1] = from[1]; }

// Which tile is the i-th: tm down, tn across, of a grid of tiles_m×tiles_n.
__device__ __forceinline__ void place_tile(int i, int tiles_m, int tiles_n, int& tm, int& tn) {
    constexpr int GROUP = 8;
    const int band = i / (GROUP * tiles_n), first = band * GROUP;
    const int height = min(GROUP, tiles_m - first), rest = i - first * tiles_n;
    tn = rest / height;
    tm = first + rest - tn * height;
}

// The products of one stage, whose A is at `from`. `rows` has the stage before and gets this one.
template <int ODD>
__device__ __forceinline__ void multiply(float (&acc)[2][WM / 64][32], Rows (&rows)[WM / 64], uint32_t from, int step) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16, chunk = lane / 16;
#pragma unroll
    for (int i = 0; i < WM / 64; ++i) {
        Rows& a = rows[i];
        const uint32_t at = from + (ODD * WM + i * 64 + row) * 128;
        copy(a.last[0], a.even[3][0]);
        copy(a.last[1], a.even[3][1]);
        copy(a.across[0], a.even[3][1]);
#pragma unroll
        for (int k = 0; k < 4; ++k) load_rows(a.even[k], at + ((2 * k + chunk) ^ row % 8) * 16);
#pragma unroll
        for (int k = 0; k < 3; ++k) load_rows(a.odd[k], at + ((2 * k + 1 + chunk) ^ row % 8) * 16);
        copy(a.across[1], a.even[0][0]);
    }
    const uint64_t even = matrix_descriptor(from + A_BYTES), odd = matrix_descriptor(from + A_BYTES + BN * BK);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < WM / 64; ++i) {
            Rows& a = rows[i];
            wgmma(acc[0][i], ODD ? k ? a.odd[k - 1] : a.across : a.even[k], even + 2 * k, step | k);
            wgmma(acc[1][i], ODD ? k ? a.even[k - 1] : a.last : k ? a.odd[k - 1] : a.across, odd + 2 * k, step | k);
        }
    wgmma_commit();
    wgmma_wait();
}

// Rows of one parity of a tile after another.
template <int ODD>
__device__ __forceinline__ void consume(const __half* A, __half* C, int M, int N, int K, uint32_t smem, uint32_t full,
    uint32_t empty, int tiles_m, int tiles_n) {
    const int lane = threadIdx.x % 32, rows = (M + 1 - ODD) / 2;
    int stage = 0, phase = 0, tm, tn;
    const int first = 0, end = (K + 8 + BK - 1) / BK;
    for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
        place_tile(tile, tiles_m, tiles_n, tm, tn);
        const int m = inside(tm * WM, WM, rows) + threadIdx.x / 32 % 4 * 16 + lane / 4;
        const int n = inside(tn * BN, BN, N);
        float acc[2][WM / 64][32];
        Rows a[WM / 64];
#pragma unroll
        for (int i = 0; i < WM / 64; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                // What lies before the first stage; of an odd row also its first eight k.
                const int row = m + i * 64 + 8 * h;
                const uint32_t* from = (const uint32_t*)(A + (size_t)(2 * row + ODD) * K + first * BK + lane % 4 * 2);
                a[i].even[3][ODD ? 0 : 1][h] = first && row < rows ? from[-4] : 0;
                if (ODD) a[i].even[3][1][h] = row < rows ? from[0] : 0;
            }
        for (int step = first; step < end; ++step) {
            barrier_wait(full + 8 * stage, phase);
            multiply<ODD>(acc, a, smem + stage * STAGE_BYTES, step - first);
            if (lane == 0) barrier_arrive(empty + 8 * stage);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
#pragma unroll
        for (int i = 0; i < WM / 64; ++i) {
            settle(acc[0][i]);
            settle(acc[1][i]);
        }
        // A thread holds two even and two odd columns of sixteen, which are four neighbours.
#pragma unroll
        for (int i = 0; i < WM / 64; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = m + i * 64 + 8 * h;
                __half* to = C + (size_t)(2 * row + ODD) * N + n + lane % 4 * 4;
#pragma unroll
                for (int j = 0; j < BN / 16; ++j) {
                    const float *even = acc[0][i] + 4 * j + 2 * h, *odd = acc[1][i] + 4 * j + 2 * h;
                    const __half2 left = __floats2half2_rn(even[0], odd[0]), right = __floats2half2_rn(even[1], odd[1]);
                    if (row < rows && n + lane % 4 * 4 + 16 * j < N)
                        *(uint2*)(to + 16 * j) = make_uint2(*(const uint32_t*)&left, *(const uint32_t*)&right);
                }
            }
    }
}

__global__ void __launch_bounds__(THREADS, 1)
gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap odd_map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap odd_map_b, const __half* A, __half* C,
    int M, int N, int K) {
    extern __shared__ uint8_t raw[];
    // A swizzled box starts at a multiple of 1 KiB.
    const uint32_t smem = (shared_address(raw) + 1023) & ~1023u;
    const uint32_t full = smem + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int tiles_m = ((M + 1) / 2 + WM - 1) / WM, tiles_n = (N + BN - 1) / BN;
    if (warp >= 8) {
        // The producer gives registers away, the consumers take them.
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) {
            const int outside = max(WM - (M + 1) / 2, 0) + max(WM - max(M / 2, 1), 0) + max(BN - N, 0);
            int stage = 0, phase = 0, tm, tn;
            const int first = 0, end = (K + 8 + BK - 1) / BK;
            for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
                place_tile(tile, tiles_m, tiles_n, tm, tn);
                const int m = inside(tm * WM, WM, (M + 1) / 2), odd_m = inside(tm * WM, WM, M / 2), n = inside(tn * BN, BN, N) / 2;
                for (int k = first * BK; k < end * BK; k += BK) {
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const uint32_t bar = full + 8 * stage, to = smem + stage * STAGE_BYTES;
                    barrier_expect(bar, STAGE_BYTES - outside * BK * 2);
                    tma_load(map_a, to, bar, k, m);
                    tma_load(odd_map_a, to + WM * BK * 2, bar, k + 8, odd_m);
                    tma_load(map_b, to + A_BYTES, bar, k, n);
                    tma_load(odd_map_b, to + A_BYTES + BN * BK, bar, k - 8, n);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (warp < 4)
            consume<0>(A, C, M, N, K, smem, full, empty, tiles_m, tiles_n);
        else
            consume<1>(A, C, M, N, K, smem, full, empty, tiles_m, tiles_n);
    }
}

// A row-major matrix as the copy engine sees it, fetched in boxes of rows×columns, their rows swizzled.
static cudaError_t describe(CUtensorMap* map, const __half* matrix, int rows, int columns, int box_rows,
    int box_columns, int every = 1) {
    static void* encode = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (!encode) cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    if (!encode) return cudaErrorNotSupported;
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch[1] = {2 * every * (cuuint64_t)columns};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, step[2] = {1, 1};
    const CUresult result = ((decltype(&cuTensorMapEncodeTiled))encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void*)matrix, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void*, cudaStream_t stream) {
    CUtensorMap map_a, odd_map_a, map_b, odd_map_b;
    // A single row has no odd ones beside it: it is fetched in their place.
    const int even = (M + 1) / 2, odd = M > 1 ? M / 2 : 1, half = N / 2;
    cudaError_t error = describe(&map_a, A, even, K, even < WM ? even : WM, 64, 2);
    if (error == cudaSuccess) error = describe(&odd_map_a, M > 1 ? A + K : A, odd, K, odd < WM ? odd : WM, 64, 2);
    if (error == cudaSuccess) error = describe(&map_b, B, half, K, half < BN / 2 ? half : BN / 2, 64, 2);
    if (error == cudaSuccess) error = describe(&odd_map_b, B + K, half, K, half < BN / 2 ? half : BN / 2, 64, 2);
    if (error != cudaSuccess) return error;
    error = cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
    if (error != cudaSuccess) return error;
    int blocks = (even + WM - 1) / WM * ((N + BN - 1) / BN);
    // As many blocks as the device holds at once; each takes tile after tile.
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    if (multiprocessors < blocks) blocks = multiprocessors;
    gemm_kernel<<<blocks, THREADS, SMEM, stream>>>(map_a, odd_map_a, map_b, odd_map_b, A, C, M, N, K);
    return cudaGetLastError();
}
