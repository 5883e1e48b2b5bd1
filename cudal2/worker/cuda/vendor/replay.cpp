// Replays a library's captured calls through the history that a candidate goes through (history.h). A library that the
// referee loads; replay.py mirrors what is exported. All runs in the caller's context, on the caller's stream.
#include <cstdint>
#include <cstring>
#include <map>

#include "history.h"

static thread_local std::string said;

struct Node {
    CUgraphNode node;
    CUgraphNodeType type;
    CUgraphEdgeData edge;             // from the node before it in the same call
    CUDA_KERNEL_NODE_PARAMS kernel;   // what it points to lives as long as the captured graph
    CUDA_MEMSET_NODE_PARAMS memset;
    bool attributes;                  // whether its launch has any
};
struct Calls {
    std::vector<std::vector<Node>> calls;
};

template <class Body>
static int guarded(const Body& body) {
    try {
        body();
        return 0;
    } catch (const std::exception& error) {
        said = error.what();
        return 1;
    }
}

static bool has_attributes(CUgraphNode node) {
    const auto of = [node](CUlaunchAttributeID which) {
        CUlaunchAttributeValue value = {};
        if (cuGraphKernelNodeGetAttribute(node, which, &value) != CUDA_SUCCESS) value = {};  // not known to this device
        return value;
    };
    return of(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim.x || of(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative ||
           of(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE).clusterSchedulingPolicyPreference ||
           of(CU_LAUNCH_ATTRIBUTE_PRIORITY).priority || of(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
               .programmaticStreamSerializationAllowed ||
           of(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW).accessPolicyWindow.num_bytes;
}

static Node read_node(CUgraphNode node, const CUgraphEdgeData& edge) {
    Node found = {node, CU_GRAPH_NODE_TYPE_EMPTY, edge, {}, {}, false};
    CHECK(cuGraphNodeGetType(node, &found.type));
    if (found.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        CHECK(cuGraphKernelNodeGetParams(node, &found.kernel));
        found.attributes = has_attributes(node);
    } else if (found.type == CU_GRAPH_NODE_TYPE_MEMSET) {
        CHECK(cuGraphMemsetNodeGetParams(node, &found.memset));
    } else {
        throw std::runtime_error("a baseline does more than launch kernels: node type " + std::to_string(found.type));
    }
    return found;
}

// The nodes of a captured stream in their order.
static std::vector<Node> in_order(CUgraph graph) {
    size_t count = 0, edges = 0;
    CHECK(cuGraphGetNodes(graph, nullptr, &count));
    std::vector<CUgraphNode> nodes(count);
    if (count) CHECK(cuGraphGetNodes(graph, nodes.data(), &count));
    CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    std::vector<CUgraphNode> from(edges), to(edges);
    std::vector<CUgraphEdgeData> data(edges);
    if (edges) CHECK(cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges));
    std::map<CUgraphNode, size_t> leaving, entering;
    for (size_t i = 0; i < edges; ++i) leaving[from[i]] = i, entering[to[i]] = i;
    std::vector<Node> found;
    for (CUgraphNode node : nodes)
        if (!entering.count(node)) found.push_back(read_node(node, {}));
    if (found.size() != 1 || edges != count - 1 || leaving.size() != edges || entering.size() != edges)
        throw std::runtime_error("a baseline's calls are no chain");
    while (leaving.count(found.back().node)) {
        const size_t edge = leaving[found.back().node];
        found.push_back(read_node(to[edge], data[edge]));
    }
    return found;
}

// A copy of a captured node. Within a call a kernel may start early, as the vendor has it; between calls all ends before
// the next begins.
static CUgraphNode copied(CUgraph graph, CUcontext context, const Node& one, CUgraphNode before, bool first) {
    CUgraphNode added;
    const bool early = before && !first && one.edge.type != CU_GRAPH_DEPENDENCY_TYPE_DEFAULT;
    const size_t plain = before && !early;
    if (one.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        CHECK(cuGraphAddKernelNode(&added, graph, &before, plain, &one.kernel));
        if (one.attributes) CHECK(cuGraphKernelNodeCopyAttributes(added, one.node));
    } else {
        CHECK(cuGraphAddMemsetNode(&added, graph, &before, plain, &one.memset, context));
    }
    if (early) CHECK(cuGraphAddDependencies(graph, &before, &added, &one.edge, 1));
    return added;
}

extern "C" const char* replay_said() { return said.c_str(); }

extern "C" void* replay_open() {
    Ours* made = new Ours;
    if (!guarded([&] { made->load(); })) return made;
    delete made;
    return nullptr;
}

// The `count` equal calls that were captured in a graph, which must outlive them.
extern "C" void* replay_take(void* graph, size_t count) {
    Calls* made = new Calls;
    const int failed = guarded([&] {
        const auto nodes = in_order((CUgraph)graph);
        if (!count || nodes.size() % count) throw std::runtime_error("a baseline's calls are not alike");
        const size_t each = nodes.size() / count;
        for (size_t i = 0; i < count; ++i)
            made->calls.push_back({nodes.begin() + i * each, nodes.begin() + (i + 1) * each});
    });
    if (!failed) return made;
    delete made;
    return nullptr;
}

extern "C" void replay_drop(void* calls) { delete (Calls*)calls; }

// Replays these of the calls, behind `each` touches each; seconds on the device's clock.
extern "C" int replay_run(void* ours, void* calls, void* stream, size_t count, const uint32_t* which, size_t each,
                          const Touch* touches, double* seconds) {
    return guarded([&] {
        const auto& captured = ((Calls*)calls)->calls;
        CUcontext context;
        CHECK(cuCtxGetCurrent(&context));
        const auto graph = build(*(Ours*)ours, count, each, touches, [&](CUgraph graph, size_t i, CUgraphNode last) {
            bool first = true;
            for (const auto& one : captured.at(which[i])) last = copied(graph, context, one, last, first), first = false;
            return last;
        });
        double host;
        ((Ours*)ours)->replay(graph, (CUstream)stream, *seconds, host);
        CHECK(cuGraphExecDestroy(graph));
    });
}

// Makes touches and waits for them. 0, or another number where it fails: hosttime.cpp calls it between two calls.
extern "C" int replay_touch(void* ours, const Touch* touches, size_t count, void* stream) {
    return guarded([&] { ((Ours*)ours)->touch_now(touches, count, (CUstream)stream); });
}

// Seconds of one replay of so many empty kernels, each behind `each` of these touches.
extern "C" int replay_empty(void* ours, void* stream, size_t count, size_t each, const Touch* touches, double* seconds) {
    return guarded([&] {
        auto& mine = *(Ours*)ours;
        const auto graph = build(mine, count, each, touches,
            [&](CUgraph graph, size_t, CUgraphNode last) { return add_single(graph, mine.empty, nullptr, last); });
        double host;
        mine.replay(graph, (CUstream)stream, *seconds, host);
        CHECK(cuGraphExecDestroy(graph));
    });
}
