// Replays a library's captured calls through the history that a candidate goes through (history.h). A library that the
// referee loads; replay.py mirrors what is exported. All runs in the caller's context, on the caller's stream.
#include <cstdint>
#include <cstring>
#include <map>

#include "history.h"

static thread_local std::string said;

struct Call {
    struct Node {
        CUgraphNode node;
        CUgraphNodeType type;
        CUgraphEdgeData edge;  // to the node before it in the same call
    };
    std::vector<Node> nodes;
};
struct Calls {
    std::vector<Call> calls;
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

// The nodes of a captured stream in their order, and the kind of each one's edge from the one before it.
static std::vector<Call::Node> in_order(CUgraph graph) {
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
    std::vector<Call::Node> found;
    for (CUgraphNode node : nodes)
        if (!entering.count(node)) found.push_back({node, CU_GRAPH_NODE_TYPE_EMPTY, {}});
    if (found.size() != 1 || edges != count - 1 || leaving.size() != edges || entering.size() != edges)
        throw std::runtime_error("a baseline's calls are no chain");
    while (leaving.count(found.back().node)) {
        const size_t edge = leaving[found.back().node];
        found.push_back({to[edge], CU_GRAPH_NODE_TYPE_EMPTY, data[edge]});
    }
    for (auto& one : found) CHECK(cuGraphNodeGetType(one.node, &one.type));
    return found;
}

// A copy of a captured node. What its parameters point to lives as long as the captured graph.
static CUgraphNode copied(CUgraph graph, const Call::Node& one, CUgraphNode before, bool first) {
    CUgraphNode added;
    if (one.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        CUDA_KERNEL_NODE_PARAMS p = {};
        CHECK(cuGraphKernelNodeGetParams(one.node, &p));
        CHECK(cuGraphAddKernelNode(&added, graph, nullptr, 0, &p));
        CHECK(cuGraphKernelNodeCopyAttributes(added, one.node));
    } else if (one.type == CU_GRAPH_NODE_TYPE_MEMSET) {
        CUcontext context;
        CUDA_MEMSET_NODE_PARAMS p = {};
        CHECK(cuCtxGetCurrent(&context));
        CHECK(cuGraphMemsetNodeGetParams(one.node, &p));
        CHECK(cuGraphAddMemsetNode(&added, graph, nullptr, 0, &p, context));
    } else {
        throw std::runtime_error("a baseline does more than launch kernels: node type " + std::to_string(one.type));
    }
    // Within a call a kernel may start early, as the vendor has it. Between calls all ends before the next begins.
    const CUgraphEdgeData plain = {};
    if (before) CHECK(cuGraphAddDependencies(graph, &before, &added, first ? &plain : &one.edge, 1));
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
            made->calls.push_back({{nodes.begin() + i * each, nodes.begin() + (i + 1) * each}});
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
        const auto graph = build(*(Ours*)ours, count, each, touches, [&](CUgraph graph, size_t i, CUgraphNode last) {
            bool first = true;
            for (const auto& one : captured.at(which[i]).nodes) last = copied(graph, one, last, first), first = false;
            return last;
        });
        double host;
        ((Ours*)ours)->replay(graph, (CUstream)stream, *seconds, host);
        CHECK(cuGraphExecDestroy(graph));
    });
}

// Writes values and waits for it. 0, or another number where it fails: hosttime.cpp calls it between two calls.
extern "C" int replay_touch(void* ours, const Touch* touches, size_t count, void* stream) {
    return guarded([&] { ((Ours*)ours)->touch_now(touches, count, (CUstream)stream); });
}

// Seconds of one replay of so many empty kernels, each behind one touch of the address `where`, or none.
extern "C" int replay_empty(void* ours, void* stream, size_t count, uint64_t where, int touched, double* seconds) {
    return guarded([&] {
        auto& mine = *(Ours*)ours;
        const std::vector<Touch> touches(count, Touch{where, 0, 0});
        const auto graph = build(mine, count, touched, touches.data(),
            [&](CUgraph graph, size_t, CUgraphNode last) { return add_single(graph, mine.empty, nullptr, last); });
        double host;
        mine.replay(graph, (CUstream)stream, *seconds, host);
        CHECK(cuGraphExecDestroy(graph));
    });
}
