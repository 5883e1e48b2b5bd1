// One kernel for each thing the gate looks for; which are compiled depends on the target.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define MMA4(NAME, SHAPE)                                                                          \
    __global__ void NAME(uint32_t* p) {                                                            \
        asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                     : "+r"(p[0]), "+r"(p[1]), "+r"(p[2]), "+r"(p[3])                              \
                     : "r"(p[4]), "r"(p[5]), "r"(p[6]), "r"(p[7]), "r"(p[8]), "r"(p[9]));          \
    }
#define MMA2(NAME, SHAPE)                                                                          \
    __global__ void NAME(uint32_t* p) {                                                            \
        asm volatile("mma.sync.aligned." SHAPE " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"        \
                     : "+r"(p[0]), "+r"(p[1])                                                      \
                     : "r"(p[4]), "r"(p[5]), "r"(p[6]), "r"(p[7]), "r"(p[8]), "r"(p[9]));          \
    }
#define WGMMA(NAME, SHAPE, SCALES)                                                                 \
    __global__ void NAME(uint32_t* p, uint64_t a, uint64_t b) {                                    \
        asm volatile("wgmma.fence.sync.aligned;\n"                                                 \
                     "wgmma.mma_async.sync.aligned." SHAPE ", %4, %5, 1" SCALES ";\n"              \
                     "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"          \
                     : "+r"(p[0]), "+r"(p[1]), "+r"(p[2]), "+r"(p[3])                              \
                     : "l"(a), "l"(b));                                                            \
    }
#define TCGEN05(NAME, KIND)                                                                        \
    __global__ void NAME(uint32_t* p, uint64_t a, uint64_t b) {                                    \
        asm volatile("{.reg .pred q; setp.ne.u32 q, %4, 0;\n"                                      \
                     "tcgen05.mma.cta_group::1.kind::" KIND " [%0], %1, %2, %3, q;}" ::"r"(p[0]),  \
                     "l"(a), "l"(b), "r"(p[1]), "r"(p[2]));                                        \
    }

MMA4(honest_f32, "m16n8k16.row.col.f32.f16.f16.f32")
#ifdef F16
MMA2(half_sum, "m16n8k16.row.col.f16.f16.f16.f16")
#endif
#ifdef F16_WGMMA
WGMMA(half_sum, "m64n8k16.f16.f16.f16 {%0,%1}", ",1,1,0,0")
#endif
#ifdef BF16
MMA4(brain, "m16n8k16.row.col.f32.bf16.bf16.f32")
#endif
#ifdef BF16_WGMMA
WGMMA(brain, "m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}", ",1,1,0,0")
#endif
#ifdef S8
MMA4(bytes, "m16n8k32.row.col.s32.s8.s8.s32")
#endif
#ifdef S4
MMA4(nibbles, "m16n8k64.row.col.s32.s4.s4.s32")
#endif
#ifdef B1
MMA4(bits, "m16n8k256.row.col.s32.b1.b1.s32.and.popc")
#endif
#ifdef S8_WGMMA
WGMMA(bytes, "m64n8k32.s32.s8.s8 {%0,%1,%2,%3}", "")
#endif
#ifdef S8_TCGEN05
TCGEN05(bytes, "i8")
#endif
#ifdef E4M3
MMA4(eighths, "m16n8k32.row.col.f32.e4m3.e5m2.f32")
#endif
#ifdef E2M1
MMA4(fourths, "kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e2m1.f32")
#endif
#ifdef E4M3_WGMMA
WGMMA(eighths, "m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}", ",1,1")
#endif
#ifdef E4M3_TCGEN05
TCGEN05(eighths, "f8f6f4")
#endif
#ifdef CLOCK
__global__ void reads_cycles(long long* p) { *p = clock64(); }
#endif
#ifdef GLOBALTIMER
__global__ void reads_time(uint64_t* p) { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*p)); }
#endif
#ifdef GLOBALS
__device__ int launches;
__global__ void counts(int* p) { *p = atomicAdd(&launches, 1); }
#endif
#ifdef BY_POINTER
__device__ int launches;
__constant__ int* where = &launches;
__global__ void counts(int* p) { *p = atomicAdd(where, 1); }
#endif
#ifdef BY_INDEX
__device__ const float written_over[4] = {1, 2, 3, 4};
__global__ void looks_up(float* p, int i) { *p = written_over[i]; }
#endif
#ifdef EMPTY  // what the constants of a header leave behind
struct Tag {};
__device__ Tag tag;
__device__ int never_used;
#endif
#ifdef MALLOC
__global__ void allocates(int** p) { *p = (int*)malloc(64); }
#endif
#ifdef F16_TCGEN05
TCGEN05(honest_tensor, "f16")
#endif
// Half arithmetic outside matrix instructions is what an epilogue does.
__global__ void honest_epilogue(__half2* p, float2* q) { *p = __hfma2(*p, *p, __float22half2_rn(*q)); }
__constant__ float table[4] = {1, 2, 3, 4};
__global__ void honest_table(float* p, int i) { *p = table[i]; }

extern "C" cudaError_t hgemm(const __half*, const __half*, __half*, int, int, int, void*, cudaStream_t) {
    return cudaSuccess;
}
