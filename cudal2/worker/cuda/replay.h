// Launch plans as the runner holds them: read from the packed form that plan.py writes, added to a graph, or launched.
#pragma once
#include <cstring>
#include <utility>
#include <vector>

#include "driver.h"

struct Node {
    bool is_kernel;
    CUfunction function;
    unsigned grid[3], block[3], cluster[3], shared, cooperative, scheduling;
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

inline void set_up(CUfunction function, unsigned shared, int carveout, const unsigned* cluster) {
    int fixed, most;
    CHECK(cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
    CHECK(cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    // What needs no asking is 48 KB with the static part. Never lowered: another launch of the kernel may need more.
    if ((size_t)shared + fixed > 48 << 10)
        CHECK(cuFuncSetAttribute(
            function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared > most ? (int)shared : most));
    if (carveout >= 0) CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, carveout));
    if (cluster[0] * cluster[1] * cluster[2] > 8)
        CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
}

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

inline Node read_node(Reader& in, const std::vector<CUfunction>& functions, CUdeviceptr workspace) {
    Node node = {};
    node.is_kernel = in.take<uint32_t>();
    if (!node.is_kernel) {
        node.address = workspace + in.take<uint64_t>();
        node.count = in.take<uint64_t>();
        node.value = in.take<uint32_t>();
        node.element = in.take<uint32_t>();
        return node;
    }
    node.function = functions.at(in.take<uint32_t>());
    for (unsigned* three : {node.grid, node.block, node.cluster})
        for (int i = 0; i < 3; ++i) three[i] = in.take<uint32_t>();
    node.shared = in.take<uint32_t>();
    node.cooperative = in.take<uint32_t>();
    node.scheduling = in.take<uint32_t>();
    set_up(node.function, node.shared, in.take<int32_t>(), node.cluster);
    const uint32_t count = in.count();
    size_t offset = 0, size = 0;
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t given = in.take<uint32_t>();
        // The driver will read as many bytes as the kernel declares, whatever the plan says.
        if (cuFuncGetParamInfo(node.function, i, &offset, &size) != CUDA_SUCCESS || size != given)
            throw DriverError(CUDA_ERROR_NOT_FOUND, "a plan's parameters are not those of its kernel");
        const char* data = in.bytes(given);
        node.parameters.emplace_back(data, data + given);
    }
    if (cuFuncGetParamInfo(node.function, count, &offset, &size) == CUDA_SUCCESS)
        throw DriverError(CUDA_ERROR_NOT_FOUND, "a plan's parameters are not those of its kernel");
    node.attributes = launch_attributes(node);
    return node;
}

// The names of a cubin's kernels, and the nodes of plans that launch them.
inline Plans read_plans(Reader& in, const char* cubin, CUdeviceptr workspace) {
    CUmodule module;
    CHECK(cuModuleLoadData(&module, cubin));
    try {
        std::vector<CUfunction> functions(in.count());
        for (auto& function : functions) {
            const uint32_t length = in.take<uint32_t>();
            const std::string name(in.bytes(length), length);
            if (cuModuleGetFunction(&function, module, name.c_str()) != CUDA_SUCCESS)
                throw DriverError(CUDA_ERROR_NOT_FOUND, "the plan launches a kernel that is not in the source: " + name);
        }
        std::vector<Plan> plans(in.count());
        for (auto& plan : plans) {
            plan.resize(in.count());
            for (auto& node : plan) node = read_node(in, functions, workspace);
            for (auto& node : plan)
                for (auto& parameter : node.parameters) node.pointers.push_back(parameter.data());
        }
        return {module, std::move(plans)};
    } catch (...) {
        cuModuleUnload(module);
        throw;
    }
}

// The plans in a runner's file: the workspace's offset and the cubin come first.
inline Plans read_plans(Reader& in) {
    const CUdeviceptr workspace = BASE + in.take<uint64_t>();
    const char* cubin = in.bytes(in.take<uint64_t>());
    return read_plans(in, cubin, workspace);
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
