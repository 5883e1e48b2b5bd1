// A CUDA device on one CPU thread, enough for the mma.sync families: blocks one after the other, the threads of a
// block as coroutines that switch where CUDA synchronises. Meant for tests of index arithmetic and of protocols
// between blocks: a block that waits for one with a higher index is a deadlock here, and is reported as such.
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <math.h>

#include <functional>
#include <vector>

#include "cuda_bf16.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __restrict__ __restrict

typedef int cudaError_t;
typedef void* cudaStream_t;
enum { cudaSuccess = 0, cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaDevAttrMultiProcessorCount = 16 };

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

namespace simt {

constexpr size_t SHARED = 227 * 1024, STACK = 256 * 1024;
constexpr int MOST = 1024, PATIENCE = 10000;

inline uint3 thread, block;
inline dim3 blocks, threads;
alignas(1024) inline unsigned char shared[SHARED];
inline size_t shared_size;
// Copies arrive when they are issued (which shows an overwrite that comes too early) or when they are waited for
// (which shows a wait that is missing).
inline bool eager;
inline long conflicts, shared_limit = SHARED;
inline int multiprocessors = 5;

struct Barrier {
    unsigned arrived, generation;
};
struct Copy {
    unsigned char* to;
    unsigned char bytes[16];
};
struct Lane {
    ucontext_t start;  // where it begins
    jmp_buf here;      // where it goes on
    bool begun, done;
    int turn;
    uint32_t given[2][8];  // what this lane hands to its warp; two, so that one barrier an exchange suffices
    std::vector<std::vector<Copy>> groups;
};
inline Lane lanes[MOST];
inline Barrier warps[MOST / 32], all;
inline unsigned char* stacks;
inline jmp_buf scheduler;
inline int current;
inline std::function<void()> body;

[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "simt: %s (block %u, thread %d)\n", what, block.x, current);
    _Exit(3);
}

// A lane begins by setcontext and goes on by longjmp: swapcontext would ask the system for the signal mask each time.
__attribute__((noinline)) inline void yield() {
    if (!_setjmp(lanes[current].here)) _longjmp(scheduler, 1);
}

__attribute__((noinline)) inline void resume(Lane& lane) {
    if (_setjmp(scheduler)) return;
    if (lane.begun) _longjmp(lane.here, 1);
    lane.begun = true;
    setcontext(&lane.start);
}

inline void arrive_and_wait(Barrier& barrier, unsigned expected) {
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    for (int spins = 0; barrier.generation == generation; ++spins) {
        if (spins > PATIENCE) fail("a barrier that not everyone reaches");
        yield();
    }
}

inline void run_lane() {
    body();
    lanes[current].done = true;
    yield();
}

inline void launch(dim3 grid, dim3 size, size_t bytes, std::function<void()> kernel) {
    if (size.x > MOST || size.x % 32 || (long)bytes > shared_limit || !grid.x) fail("launch configuration");
    if (!stacks) stacks = (unsigned char*)malloc(STACK * MOST);
    blocks = grid, threads = size, body = kernel, shared_size = bytes;
    for (block = {0, 0, 0}; block.z < grid.z; ++block.z)
        for (block.y = 0; block.y < grid.y; ++block.y)
            for (block.x = 0; block.x < grid.x; ++block.x) {
                memset(shared, 0xff, SHARED);
                for (unsigned i = 0; i < size.x; ++i) {
                    Lane& lane = lanes[i];
                    lane.begun = lane.done = false;
                    lane.groups.assign(1, {});
                    getcontext(&lane.start);
                    lane.start.uc_stack.ss_sp = stacks + STACK * i;
                    lane.start.uc_stack.ss_size = STACK;
                    lane.start.uc_link = nullptr;
                    makecontext(&lane.start, run_lane, 0);
                }
                for (unsigned running = size.x; running;) {
                    running = 0;
                    for (unsigned i = 0; i < size.x; ++i) {
                        if (lanes[i].done) continue;
                        current = i;
                        thread = {i, 0, 0};
                        resume(lanes[i]);
                        running += !lanes[i].done;
                    }
                }
                for (size_t i = bytes; i < SHARED; ++i)
                    if (shared[i] != 0xff) fail("a write beyond the shared memory asked for");
            }
}

// Gives `count` words to the warp and waits until all lanes have; `given(lane)` then reads anyone's.
inline int exchange(const uint32_t* words, int count) {
    Lane& lane = lanes[current];
    const int turn = lane.turn ^= 1;
    memcpy(lane.given[turn], words, 4 * count);
    arrive_and_wait(warps[current / 32], 32);
    return turn;
}
inline const uint32_t* given(int lane, int turn) { return lanes[current / 32 * 32 + lane].given[turn]; }

inline unsigned char* at(uint32_t address, int bytes) {
    if (address + bytes > shared_size || address % bytes) fail("a shared address out of range or misaligned");
    return shared + address;
}

inline void arrive(const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) memcpy(copy.to, copy.bytes, 16);
}
inline void copy(uint32_t to, const void* from, int bytes) {
    Copy one{at(to, 16), {}};
    if ((uintptr_t)from % 16 && bytes) fail("a misaligned global address");
    if (bytes) memcpy(one.bytes, from, bytes);
    if (eager) return arrive({one});
    lanes[current].groups.back().push_back(one);
}
inline void commit() { lanes[current].groups.emplace_back(); }
inline void wait(int pending) {
    auto& groups = lanes[current].groups;
    while ((int)groups.size() - 1 > pending) {
        arrive(groups.front());
        groups.erase(groups.begin());
    }
}

template <bool TRANSPOSED>
void ldmatrix(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t from) {
    at(from, 16);
    const int turn = exchange(&from, 1), lane = current % 32;
    uint32_t* r[4] = {&r0, &r1, &r2, &r3};
    for (int m = 0; m < 4; ++m) {
        int seen = 0;
        for (int row = 0; row < 8; ++row) seen |= 1 << given(m * 8 + row, turn)[0] / 16 % 8;
        conflicts += seen != 255;
        uint16_t two[2];
        for (int e = 0; e < 2; ++e) {
            const int row = TRANSPOSED ? lane % 4 * 2 + e : lane / 4, col = TRANSPOSED ? lane / 4 : lane % 4 * 2 + e;
            memcpy(two + e, shared + given(m * 8 + row, turn)[0] + 2 * col, 2);
        }
        memcpy(r[m], two, 4);
    }
}

inline float half_of(uint32_t word, int which, bool bfloat = false) { return number_of(word >> 16 * which, bfloat); }
// Sum e of a lane: row lane / 4 + 8 * (e / 2), column 2 * (lane % 4) + e % 2 of the product of 16×16 and 16×8.
inline void product(const uint32_t (&operands)[6], float (&d)[4], bool bfloat = false) {
    const int turn = exchange(operands, 6), lane = current % 32;
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 16; ++k) {
            const float a = half_of(given(lane / 4 * 4 + k % 8 / 2, turn)[k / 8 * 2 + e / 2], k % 2, bfloat);
            const float b = half_of(given((lane % 4 * 2 + e % 2) * 4 + k % 8 / 2, turn)[4 + k / 8], k % 2, bfloat);
            d[e] += a * b;
        }
}
template <bool BFLOAT>
inline void mma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                uint32_t b0, uint32_t b1) {
    float d[4] = {d0, d1, d2, d3};
    product({a0, a1, a2, a3, b0, b1}, d, BFLOAT);
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
template <bool BFLOAT>
inline void mma(uint32_t& d0, uint32_t& d1, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                uint32_t b1) {
    float d[4] = {half_of(d0, 0), half_of(d0, 1), half_of(d1, 0), half_of(d1, 1)};
    product({a0, a1, a2, a3, b0, b1}, d);
    const _Float16 h[4] = {(_Float16)d[0], (_Float16)d[1], (_Float16)d[2], (_Float16)d[3]};
    memcpy(&d0, h, 4);
    memcpy(&d1, h + 2, 4);
}

inline void load_acquire(int& value, const void* from) {
    static int same;
    static const void* last;
    same = from == last ? same + 1 : 0;
    last = from;
    if (same > PATIENCE) fail("waits for a block that comes later, or for ever");
    yield();
    value = *(const volatile int*)from;
}
inline void load_words(uint32_t* const (&to)[4], int count, const void* from, int valid) {
    if (!valid) return;
    if ((uintptr_t)from % (4 * count)) fail("a misaligned global address");
    for (int i = 0; i < count; ++i) memcpy(to[i], (const char*)from + 4 * i, 4);
}
inline void load_words(uint32_t& x, const void* from, int valid) { load_words({&x}, 1, from, valid); }
inline void load_words(uint32_t& x, uint32_t& y, const void* from, int valid) { load_words({&x, &y}, 2, from, valid); }
inline void load_words(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, const void* from, int valid) {
    load_words({&x, &y, &z, &w}, 4, from, valid);
}

}  // namespace simt

#define threadIdx simt::thread
#define blockIdx simt::block
#define blockDim simt::threads
#define gridDim simt::blocks

inline float __expf(float x) { return expf(x); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetAttribute(F, int, int bytes) { return bytes > simt::shared_limit; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { return *value = simt::multiprocessors, cudaSuccess; }

inline void __syncthreads() { simt::arrive_and_wait(simt::all, simt::threads.x); }
inline void __syncwarp(unsigned = ~0u) { simt::arrive_and_wait(simt::warps[simt::current / 32], 32); }
inline int __syncthreads_or(int mine) {
    static int votes[2], turn;
    votes[turn] |= mine;
    const int now = turn;
    __syncthreads();
    const int any = votes[now];
    __syncthreads();
    votes[now] = 0;
    return any;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline size_t __cvta_generic_to_shared(const void* p) { return (const unsigned char*)p - simt::shared; }
inline int atomicAdd(int* to, int value) { const int old = *to; *to += value; return old; }
inline int atomicExch(int* to, int value) { const int old = *to; *to = value; return old; }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> T __ldg(const T* from) { return *from; }
template <class T> void __stcg(T* to, T value) { *to = value; }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    uint32_t word;
    memcpy(&word, &value, 4);
    const int turn = simt::exchange(&word, 1);
    memcpy(&value, simt::given(simt::current % 32 ^ mask, turn), 4);
    return value;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}
