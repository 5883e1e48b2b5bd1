// Launch plans as the runner holds them: read from the packed form that plan.py writes, added to a graph, or launched.
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "driver.h"

struct Node {
    bool is_kernel;
    CUfunction function;
    uint32_t number;  // of the kernel's name
    unsigned grid[3], block[3], cluster[3], shared, cooperative, scheduling;
    int carveout;
    std::vector<std::vector<char>> parameters;
    std::vector<void*> pointers;
    std::vector<CUlaunchAttribute> attributes;
    CUdeviceptr address;  // the rest is for memsets
    unsigned value, element;
    size_t count;
};
using Plan = std::vector<Node>;
struct Plans {
    CUmodule module;
    std::vector<std::string> names;  // of the kernels
    std::vector<Plan> plans;  // one for each set of buffers
};

// Takes numbers and bytes from the packed plans in order.
struct Reader {
    const char *at, *end;
    template <class T>
    T take() {
        T value;
        memcpy(&value, bytes(sizeof value), sizeof value);
        return value;
    }
    // How many things follow, of four bytes at least: a number that lies asks for no more memory than the file has.
    uint32_t count() {
        const auto found = take<uint32_t>();
        if ((size_t)(end - at) / 4 < found) throw std::runtime_error("the plans end too soon");
        return found;
    }
    const char* bytes(size_t count) {
        if ((size_t)(end - at) < count) throw std::runtime_error("the plans end too soon");
        at += count;
        return at - count;
    }
};

inline std::vector<CUlaunchAttribute> launch_attributes(const Node& node) {
    std::vector<CUlaunchAttribute> found;
    CUlaunchAttribute attribute = {};
    if (node.cluster[0]) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim = {node.cluster[0], node.cluster[1], node.cluster[2]};
        found.push_back(attribute);
    }
    if (node.scheduling) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        attribute.value.clusterSchedulingPolicyPreference = (CUclusterSchedulingPolicy)node.scheduling;
        found.push_back(attribute);
    }
    if (node.cooperative) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
        found.push_back(attribute);
    }
    return found;
}

inline Node read_node(Reader& in, CUdeviceptr workspace) {
    Node node = {};
    node.is_kernel = in.take<uint32_t>();
    if (!node.is_kernel) {
        node.address = workspace + in.take<uint64_t>();
        node.count = in.take<uint64_t>();
        node.value = in.take<uint32_t>();
        node.element = in.take<uint32_t>();
        return node;
    }
    node.number = in.take<uint32_t>();
    for (unsigned* three : {node.grid, node.block, node.cluster})
        for (int i = 0; i < 3; ++i) three[i] = in.take<uint32_t>();
    node.shared = in.take<uint32_t>();
    node.cooperative = in.take<uint32_t>();
    node.scheduling = in.take<uint32_t>();
    node.carveout = in.take<int32_t>();
    const uint32_t count = in.count();
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t given = in.take<uint32_t>();
        const char* data = in.bytes(given);
        node.parameters.emplace_back(data, data + given);
    }
    node.attributes = launch_attributes(node);
    return node;
}

// The driver will read as many bytes of parameters as the kernel declares, whatever the plan says.
inline void check_parameters(const Node& node) {
    const size_t count = node.parameters.size();
    size_t offset = 0, size = 0;
    for (size_t i = 0; i < count; ++i)
        if (cuFuncGetParamInfo(node.function, i, &offset, &size) != CUDA_SUCCESS || size != node.parameters[i].size())
            throw DriverError(CUDA_ERROR_NOT_FOUND, "a plan's parameters are not those of its kernel");
    if (cuFuncGetParamInfo(node.function, count, &offset, &size) == CUDA_SUCCESS)
        throw DriverError(CUDA_ERROR_NOT_FOUND, "a plan's parameters are not those of its kernel");
}

inline void set_up(const Node& node) {
    int fixed, most;
    const CUfunction function = node.function;
    CHECK(cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
    CHECK(cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    // What needs no asking is 48 KB with the static part. Never lowered: another launch of the kernel may need more.
    if ((size_t)node.shared + fixed > 48 << 10)
        CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                 (int)node.shared > most ? (int)node.shared : most));
    if (node.carveout >= 0)
        CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, node.carveout));
    if (node.cluster[0] * node.cluster[1] * node.cluster[2] > 8)
        CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
}

// Whether what `set_up` and `check_parameters` look at is the same of two launches of one kernel.
inline bool alike(const Node& one, const Node& other) {
    if (one.shared != other.shared || one.carveout != other.carveout || memcmp(one.cluster, other.cluster, sizeof one.cluster))
        return false;
    return std::equal(one.parameters.begin(), one.parameters.end(), other.parameters.begin(), other.parameters.end(),
                      [](const auto& a, const auto& b) { return a.size() == b.size(); });
}

// Loads a cubin, and has the plans launch its kernels. The module that they launched from before is the caller's to unload.
inline void load_kernels(Plans& those, const char* cubin) {
    CUmodule module;
    CHECK(cuModuleLoadData(&module, cubin));
    try {
        std::vector<CUfunction> functions;
        for (const auto& name : those.names) {
            functions.push_back(nullptr);
            if (cuModuleGetFunction(&functions.back(), module, name.c_str()) != CUDA_SUCCESS)
                throw DriverError(CUDA_ERROR_NOT_FOUND, "the plan launches a kernel that is not in the source: " + name);
        }
        std::vector<const Node*> last(functions.size());  // of each kernel, the launch that was looked at last
        for (auto& plan : those.plans)
            for (auto& node : plan) {
                if (!node.is_kernel) continue;
                node.function = functions.at(node.number);
                if (!last[node.number] || !alike(node, *last[node.number])) {
                    check_parameters(node);
                    set_up(node);
                    last[node.number] = &node;
                }
            }
        those.module = module;
    } catch (...) {
        cuModuleUnload(module);
        throw;
    }
}

// The names of a cubin's kernels, and the nodes of plans that launch them.
inline Plans read_plans(Reader& in, const char* cubin, CUdeviceptr workspace) {
    Plans those = {};
    those.names.resize(in.count());
    for (auto& name : those.names) {
        const uint32_t length = in.take<uint32_t>();
        name = std::string(in.bytes(length), length);
    }
    those.plans.resize(in.count());
    for (auto& plan : those.plans) {
        plan.resize(in.count());
        for (auto& node : plan) node = read_node(in, workspace);
        for (auto& node : plan)
            for (auto& parameter : node.parameters) node.pointers.push_back(parameter.data());
    }
    load_kernels(those, cubin);
    return those;
}

inline CUgraphNode add(CUgraph graph, const Node& node, const CUgraphNode* before) {
    CUgraphNode added;
    if (!node.is_kernel) {
        CUcontext context;
        CHECK(cuCtxGetCurrent(&context));
        CUDA_MEMSET_NODE_PARAMS p = {node.address, 0, node.value, node.element, node.count, 1};
        CHECK(cuGraphAddMemsetNode(&added, graph, before, before ? 1 : 0, &p, context));
        return added;
    }
    CUDA_KERNEL_NODE_PARAMS p = {};
    p.func = node.function;
    p.gridDimX = node.grid[0], p.gridDimY = node.grid[1], p.gridDimZ = node.grid[2];
    p.blockDimX = node.block[0], p.blockDimY = node.block[1], p.blockDimZ = node.block[2];
    p.sharedMemBytes = node.shared;
    p.kernelParams = (void**)node.pointers.data();
    CHECK(cuGraphAddKernelNode(&added, graph, before, before ? 1 : 0, &p));
    for (const auto& attribute : node.attributes)
        CHECK(cuGraphKernelNodeSetAttribute(added, attribute.id, &attribute.value));
    return added;
}

inline void launch(const Node& node, CUstream stream) {
    if (!node.is_kernel) {
        if (node.element == 4) CHECK(cuMemsetD32Async(node.address, node.value, node.count, stream));
        else if (node.element == 2) CHECK(cuMemsetD16Async(node.address, node.value, node.count, stream));
        else CHECK(cuMemsetD8Async(node.address, node.value, node.count, stream));
        return;
    }
    CUlaunchConfig config = {};
    config.gridDimX = node.grid[0], config.gridDimY = node.grid[1], config.gridDimZ = node.grid[2];
    config.blockDimX = node.block[0], config.blockDimY = node.block[1], config.blockDimZ = node.block[2];
    config.sharedMemBytes = node.shared;
    config.hStream = stream;
    config.attrs = (CUlaunchAttribute*)node.attributes.data();
    config.numAttrs = node.attributes.size();
    CHECK(cuLaunchKernelEx(&config, node.function, (void**)node.pointers.data(), nullptr));
}
