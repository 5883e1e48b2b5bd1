// What the calls of a window go through, the same for a candidate (runner.cpp) and for a baseline (vendor/replay.cpp): before
// each call a kernel of one thread, which makes the call's touches, one after the other. A touch writes one value: mostly
// into an input of some set of the window, the value which stands there, or at times another; else it is an element of the
// output of the call just over, which goes where the referee looks for it, under a mask (history.py). Every call has as many,
// so that nothing (the number of a launch, a pause) tells one from another, and the last says nothing, so that neither do
// registers. Their time is known and subtracted.
#pragma once
#include <time.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "driver.h"

struct Touch {
    uint64_t where, source;  // addresses, or in a runner's command offsets from where the buffers begin; no source: 0
    uint32_t value, unused;  // the bits of what stands at the source, or of 0, that are changed
};
static_assert(sizeof(Touch) == 24, "history.py and hosttime.cpp count on it");

constexpr size_t MOST_TOUCHES = 5;  // of a call
struct Touches {
    Touch list[MOST_TOUCHES];
    uint32_t count, unused;

    Touches(const Touch* first, size_t number) : list{}, count(number), unused(0) {
        if (number > MOST_TOUCHES) throw std::runtime_error("more touches than a kernel is given");
        std::copy(first, first + number, list);
    }
};
static_assert(sizeof(Touches) == 128, "the kernel's parameter");

// Rolled: each touch is made in the registers of the one before.
static const char OURS[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry touch(.param .align 8 .b8 given[128]) {
    .reg .u64 %next, %to, %from;
    .reg .u32 %left, %wide;
    .reg .u16 %value, %half;
    .reg .pred %keeps, %more;
    mov.u64 %next, given;
    ld.param.u32 %left, [given + 120];
again:
    .pragma "nounroll";
    ld.param.u64 %to, [%next];
    ld.param.u64 %from, [%next + 8];
    ld.param.u32 %wide, [%next + 16];
    cvt.u16.u32 %value, %wide;
    mov.u16 %half, 0;
    setp.ne.u64 %keeps, %from, 0;
    @%keeps ld.global.u16 %half, [%from];
    xor.b16 %half, %half, %value;
    st.global.u16 [%to], %half;
    add.u64 %next, %next, 24;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra again;
    ret;
}
.visible .entry empty() {
    ret;
}
.visible .entry spin(.param .u64 nanoseconds) {
    .reg .u64 %start, %now, %length;
    .reg .pred %more;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %length;
    @%more bra again;
    ret;
})";

inline double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// Our own kernels, and the clock that they are timed with. All of a process's calls run on its one stream.
struct Ours {
    CUfunction touch, empty, spin;
    CUevent began, ended;
    uint64_t spin_nanoseconds = 150000;  // in which the host gets ahead of the device: no launch is in the time

    void load() {
        CUmodule module;
        CHECK(cuModuleLoadData(&module, OURS));
        CHECK(cuModuleGetFunction(&touch, module, "touch"));
        CHECK(cuModuleGetFunction(&empty, module, "empty"));
        CHECK(cuModuleGetFunction(&spin, module, "spin"));
        CHECK(cuEventCreate(&began, CU_EVENT_DEFAULT));
        CHECK(cuEventCreate(&ended, CU_EVENT_DEFAULT));
    }
    void spin_now(CUstream stream) {
        void* arguments[] = {&spin_nanoseconds};
        CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
    }
    void touch_now(const Touch* first, size_t count, CUstream stream) {
        Touches given(first, count);
        void* arguments[] = {&given};
        CHECK(cuLaunchKernel(touch, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
        CHECK(cuStreamSynchronize(stream));
    }
    // Seconds of a graph on the device's clock, and on the host's without the spin.
    void replay(CUgraphExec graph, CUstream stream, double& device_seconds, double& host_seconds) {
        CHECK(cuGraphUpload(graph, stream));
        CHECK(cuStreamSynchronize(stream));
        const double start = now();
        spin_now(stream);
        CHECK(cuEventRecord(began, stream));
        CHECK(cuGraphLaunch(graph, stream));
        CHECK(cuEventRecord(ended, stream));
        CHECK(cuStreamSynchronize(stream));
        host_seconds = now() - start - 1e-9 * spin_nanoseconds;
        float milliseconds = 0;
        CHECK(cuEventElapsedTime(&milliseconds, began, ended));
        device_seconds = 1e-3 * milliseconds;
    }
};

inline CUgraphNode add_single(CUgraph graph, CUfunction function, void** arguments, CUgraphNode before) {
    CUDA_KERNEL_NODE_PARAMS p = {};
    p.func = function;
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = arguments;
    CUgraphNode added;
    CHECK(cuGraphAddKernelNode(&added, graph, before ? &before : nullptr, before ? 1 : 0, &p));
    return added;
}

// A graph of `count` calls, one after the other, behind `each` touches each. `add_call(graph, i, before)` adds call i
// behind the node `before`, which may be null, and returns its last node. Never kept: a replay in an order that was seen
// before would let a call fetch the next one's inputs ahead.
template <class AddCall>
CUgraphExec build(const Ours& ours, size_t count, size_t each, const Touch* touches, const AddCall& add_call) {
    CUgraph graph;
    CUgraphExec executable;
    CHECK(cuGraphCreate(&graph, 0));
    CUgraphNode last = nullptr;
    for (size_t i = 0; i < count; ++i) {
        if (each) {
            Touches given(touches + i * each, each);
            void* arguments[] = {&given};
            last = add_single(graph, ours.touch, arguments, last);
        }
        last = add_call(graph, i, last);
    }
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    cuGraphDestroy(graph);
    return executable;
}
