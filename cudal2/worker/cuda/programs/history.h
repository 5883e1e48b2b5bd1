// What the calls of a window go through, the same for a candidate (runner.cpp) and for a baseline (vendor/replay.cpp):
// before each call a `touch`, or a few, a kernel of one thread that writes one value into an input of some set of the
// window. Mostly that is the value which stands there; at times it is another. Every call has as many, so that nothing (the
// number of a launch, a register, a pause) tells a call whose inputs changed from another. Their time is known and
// subtracted.
#pragma once
#include <time.h>

#include <vector>

#include "driver.h"

struct Touch {
    uint64_t where;  // an address, or in a runner's command an offset from where the buffers begin
    uint32_t value, unused;
};

static const char OURS[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 where, .param .u32 value) {
    .reg .u64 %to;
    .reg .u32 %wide;
    .reg .u16 %half;
    ld.param.u64 %to, [where];
    ld.param.u32 %wide, [value];
    cvt.u16.u32 %half, %wide;
    st.global.u16 [%to], %half;
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
    void touch_now(const Touch* touches, size_t count, CUstream stream) {
        for (size_t i = 0; i < count; ++i) {
            void* arguments[] = {(void*)&touches[i].where, (void*)&touches[i].value};
            CHECK(cuLaunchKernel(touch, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
        }
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
        for (size_t j = 0; j < each; ++j) {
            const Touch& one = touches[i * each + j];
            void* arguments[] = {(void*)&one.where, (void*)&one.value};
            last = add_single(graph, ours.touch, arguments, last);
        }
        last = add_call(graph, i, last);
    }
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    cuGraphDestroy(graph);
    return executable;
}
