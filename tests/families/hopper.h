// A slow, pessimistic Hopper block scheduler, enough of it to run the sm_90a families without a GPU.
//
// As many clusters at a time as there are "processors", every CUDA thread a fiber, switched only where a thread waits. What the hardware may do late is
// done late: products are computed from shared memory only when a thread waits for them, boxes travel at a random
// moment, so that a stage given back too early or a missing wait shows as a wrong result. Waiting in vain is reported.
// Here is what a translated kernel sees; what it calls is defined in hopper.cpp.
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
using std::max;
using std::min;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint4 { uint32_t x, y, z, w; };
struct float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#include "simt/cuda_bf16.h"

using __half = _Float16;
struct __half2 { __half x, y; };
inline float __expf(float x) { return expf(x); }
inline __half __float2half_rn(float x) { return (__half)x; }
inline __half2 __floats2half2_rn(float x, float y) { return {(__half)x, (__half)y}; }

#pragma GCC visibility push(hidden)
namespace emu {
extern bool bfloat;  // whether the matrices hold such
constexpr int WORDS = 6;  // that a lane may hand to its warp
constexpr uint32_t BASE = 1024 + 512;  // where dynamic shared memory starts: on purpose not at a multiple of 1 KiB
struct Map { const char* data; uint64_t size[2], pitch; uint32_t box[2], swizzle; };
struct Barrier { int count = 0, pending = 0, tx = 0, phase = 0; };
struct Product { std::vector<float*> f; std::vector<uint32_t*> h; uint64_t a, b; int n, add, transposed; };
struct Rendezvous { int arrived = 0, generation = 0; };
struct Cluster;
struct Block {
    Cluster* cluster;
    int index, rank, threads, running;
    int copied = 0;  // threads of it that have written shared memory that the tensor cores may not see
    std::vector<uint8_t> shared;
    std::map<uint32_t, Barrier> barriers;
    std::map<int, Rendezvous> named;
    std::map<int, Rendezvous> warps;
    std::vector<uint32_t> exchange;  // 32 lanes × WORDS a warp
    std::map<int, uint64_t> variables;  // of static shared memory, by line
};
struct Store { Map map; Block* block; uint32_t from; int x, y; bool read; };
using Stack = std::unique_ptr<char[]>;
constexpr size_t STACK = 48 << 10;
struct Thread {
    ucontext_t start;  // where it begins
    jmp_buf here;      // where it goes on
    bool begun = false;
    Stack stack;
    int index;
    Block* block;
    bool done = false;
    bool met = false;           // knows that all blocks of its cluster have started
    std::set<uint32_t> staged;  // where it has written shared memory that the copy engine may not see
    bool copied = false;        // is one of the block's `copied`
    std::vector<std::vector<Product>> groups;
    std::vector<Product> open;
    std::vector<std::vector<std::function<void()>>> copies;
    std::vector<std::function<void()>> open_copies;
    std::vector<std::shared_ptr<Store>> stores, open_stores;
    std::vector<std::vector<std::shared_ptr<Store>>> store_groups;
};
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Thread>> threads;
    Rendezvous barrier;
    int alive;
};
inline Thread* self;
inline std::string report;
inline bool failed;
inline long progress, astray;  // astray: rows that the copy engine fetched from the middle of a sector of 32 bytes
inline int processors = 3;

void yield();
void fail(std::string why);
void meet(Rendezvous& r, int count, bool stay);

// --- the instructions, operands in the order of the tables in hopper.py
inline void nothing() {}
void mbarrier_init(uint32_t bar, int count);
void mbarrier_expect(uint32_t bar, int bytes);
void mbarrier_arrive(uint32_t bar);
void mbarrier_arrive_remote(uint32_t bar, int rank);
void mbarrier_try_wait(uint32_t& over, uint32_t bar, int parity);
void bar_sync(int id, int count);
void bar_arrive(int id, int count);
void cluster_arrive();
void cluster_wait();
void cluster_both();
void load(uint32_t to, const void* map_at, int x, int y, uint32_t bar, int mask);
void load_own(uint32_t to, const void* map, int x, int y, uint32_t bar);
void bulk(uint32_t to, const void* from, int bytes, uint32_t bar, int mask);
void bulk_own(uint32_t to, const void* from, int bytes, uint32_t bar);
void proxy_fence();
void store(const void* map_at, int x, int y, uint32_t from);
void store_commit();
void store_wait(int left);
void collect(Product& p, float& d);
void collect(Product& p, uint32_t& d);
void multiply(Product p);  // when it is waited for
template <class... T> void wgmma(int n, int transposed, uint64_t a, uint64_t b, int add, T&... d) {
    Product p{{}, {}, a, b, n, add, transposed};
    (collect(p, d), ...);
    if ((int)p.f.size() != (p.f.size() ? n / 2 : 0) || (int)p.h.size() != (p.h.size() ? n / 4 : 0)) fail("wrong number of sums");
    multiply(std::move(p));
}
void syncwarp();
void wgmma_commit();
void wgmma_wait(int left);
uint32_t* lane_words(int lane);
void stmatrix(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3);
void stmatrix_trans(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3);
void movmatrix(uint32_t& d, uint32_t a);
void ld4(float& x, float& y, float& z, float& w, uint32_t from);
void ld4_words(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from);
void st4(uint32_t to, float x, float y, float z, float w);
void st_async(uint32_t to, uint32_t bar, int rank, int mine, float x, float y, float z, float w);
void ld16_if(uint32_t valid, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, const void* from);
void mma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
void copy16(uint32_t to, const void* from, int bytes);
void copy_commit();
void copy_wait(int left);
void load_acquire(int& value, const int* from);
void add_release(int* to, int value);
void store_release(int* to, int value);

// --- launching
inline int grid_size;
void* dynamic_shared();
uint64_t& variable(int line);
template <class T> T& static_shared(int line) { return *(T*)&variable(line); }
int launch(unsigned grid, int threads, size_t shared, int cluster_size, std::function<void()> kernel);
int launch_together(unsigned grid, int threads, size_t shared, std::function<void()> kernel);
}  // namespace emu
#pragma GCC visibility pop

struct ThreadIndex { operator unsigned() const { return emu::self->index; } };
struct BlockIndex { operator unsigned() const { return emu::self->block->index; } };
struct GridSize { operator unsigned() const { return emu::grid_size; } };
inline struct { ThreadIndex x; } threadIdx;
inline struct { BlockIndex x; } blockIdx;
inline struct { GridSize x; } gridDim;
inline void __syncthreads() { emu::meet(emu::self->block->named[0], emu::self->block->threads, true); }
inline void __syncwarp() { emu::syncwarp(); }
inline void __threadfence() {}
inline uint32_t __cvta_generic_to_shared(const void* p) { return (uint32_t)(uintptr_t)p; }
inline int __shfl_sync(unsigned, int value, int lane) {
    *emu::lane_words(emu::self->index % 32) = value;
    emu::syncwarp();
    const int got = *emu::lane_words(lane);
    emu::syncwarp();
    return got;
}
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> void __stcg(T* to, T value) { *to = value; }
inline int atomicAdd(int* to, int value) { return ++emu::progress, (*to += value) - value; }

// --- the host's side
using cudaError_t = int;
using cudaStream_t = void*;
using CUresult = int;
using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;
struct alignas(64) CUtensorMap { char opaque[128]; };
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotSupported = 801, CUDA_SUCCESS = 0 };
enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 1, CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_32B = 3 };
enum { cudaEnableDefault, cudaDevAttrMultiProcessorCount, cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout, cudaFuncAttributeNonPortableClusterSizeAllowed, cudaLaunchAttributeClusterDimension };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, int type, int rank, void* data, const cuuint64_t* size, const cuuint64_t* pitch,
    const cuuint32_t* box, const cuuint32_t* step, int, CUtensorMapSwizzle swizzle, int, int) {
    const uint32_t row = swizzle == 1 ? 128 : swizzle == 2 ? 64 : 32;
    const bool valid = rank == 2 && (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) == emu::bfloat && (uintptr_t)data % 16 == 0 && pitch[0] % 16 == 0 && size[0] && size[1] && step[0] == 1 && step[1] == 1 &&
                       box[0] >= 1 && box[1] >= 1 && box[0] <= 256 && box[1] <= 256 && box[0] * 2 == row;
    if (!valid) return emu::report = "a tensor map the driver would refuse", 1;
    const emu::Map made{(const char*)data, {size[0], size[1]}, pitch[0], {box[0], box[1]}, (uint32_t)swizzle};
    memcpy(map, &made, sizeof made);
    return 0;
}
inline int cudaGetDriverEntryPointByVersion(const char*, void** found, int, int, cudaDriverEntryPointQueryResult* result) {
    *found = (void*)cuTensorMapEncodeTiled, *result = cudaDriverEntryPointSuccess;
    return 0;
}
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaDeviceGetAttribute(int* value, int, int) { return *value = emu::processors, 0; }
template <class F> int cudaFuncSetAttribute(F, int, int) { return 0; }
struct cudaLaunchAttribute {
    int id;
    struct { struct { int x, y, z; } clusterDim; } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaLaunchAttribute* attrs;
    int numAttrs;
};
template <class F> int cudaOccupancyMaxActiveClusters(int* clusters, F, const cudaLaunchConfig_t*) { return *clusters = emu::processors, 0; }
inline int cudaGetLastError() { return emu::failed; }
