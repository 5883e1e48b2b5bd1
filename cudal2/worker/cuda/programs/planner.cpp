// Runs a candidate's launcher under stream capture, in jail, and writes down what it would have launched.
//
//   planner KERNEL.so FD PLACES BASE BYTES M N K STREAM REHEARSED
//
// PLACES is a file that begins with how many addresses a place has (range.h); then follow the places: the addresses of the
// operands and of the workspace that a call is given. All are within BYTES from BASE on. STREAM is "own" or "per-thread"; REHEARSED 1 where a call that is not recorded comes
// first. What a kernel's functions are called, and how, comes with the compiler's command line: CONTRACT_… of contract.py.
// Written to FD: a "+" once the device is open, before anything of the candidate's is loaded; then one JSON object,
// `Recording` of plan.py, or {"error": …}. That object is the word of a process that the candidate shares: whoever reads it
// must treat it as data.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "range.h"

struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Sizer = size_t (*)(int, int, int);

// Small pieces of memory behind the whole range: a launcher may ask what its pointers are, but none of it is data.
static void back_range(CUdevice device, size_t bytes) {
    const size_t piece = (size_t)64 << 20;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    CUmemGenericAllocationHandle memory;
    CHECK(cuMemCreate(&memory, piece, &properties, 0));
    bytes = (bytes + piece - 1) / piece * piece;
    for (size_t offset = 0; offset < bytes; offset += piece) CHECK(cuMemMap(BASE + offset, piece, 0, memory, 0));
    allow_access(device, bytes);
}

static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c < 32 || c > 126 ? '?' : (char)c;
    }
    return out + "\"";
}

static std::string hex(const void* data, size_t size) {
    static const char digits[] = "0123456789abcdef";
    std::string out;
    for (size_t i = 0; i < size; ++i) {
        const unsigned char byte = ((const unsigned char*)data)[i];
        out += {digits[byte >> 4], digits[byte & 15]};
    }
    return out;
}

static std::string triple(unsigned x, unsigned y, unsigned z) {
    return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
}

static CUkernelNodeAttrValue attribute(CUgraphNode node, CUkernelNodeAttrID which) {
    CUkernelNodeAttrValue value = {};
    if (cuGraphKernelNodeGetAttribute(node, which, &value) != CUDA_SUCCESS) value = {};  // not known to this device
    return value;
}

static std::string kernel_node(CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS p = {};
    CHECK(cuGraphKernelNodeGetParams(node, &p));
    if (attribute(node, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW).accessPolicyWindow.num_bytes)
        throw Refused("a launch asks for L2 persistence");
    if (attribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY).priority) throw Refused("a launch asks for a priority");
    if (!p.func) CHECK(cuKernelGetFunction(&p.func, p.kern));
    const char* name = nullptr;
    CHECK(cuFuncGetName(&name, p.func));
    int carveout = -1;
    CHECK(cuFuncGetAttribute(&carveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, p.func));
    const auto cluster = attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim;
    const int scheduling =
        attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE).clusterSchedulingPolicyPreference;
    const int cooperative = attribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative;
    std::string parameters;
    size_t offset = 0, size = 0;
    for (size_t i = 0; cuFuncGetParamInfo(p.func, i, &offset, &size) == CUDA_SUCCESS; ++i) {
        if (!p.kernelParams) throw Refused("a launch packs its own parameters");
        parameters += (i ? ",\"" : "\"") + hex(p.kernelParams[i], size) + "\"";
    }
    return "{\"type\":\"kernel\",\"name\":" + quoted(name) + ",\"grid\":" + triple(p.gridDimX, p.gridDimY, p.gridDimZ) +
           ",\"block\":" + triple(p.blockDimX, p.blockDimY, p.blockDimZ) +
           ",\"cluster\":" + triple(cluster.x, cluster.y, cluster.z) + ",\"shared\":" + std::to_string(p.sharedMemBytes) +
           ",\"cooperative\":" + (cooperative ? "true" : "false") + ",\"scheduling\":" + std::to_string(scheduling) +
           ",\"carveout\":" + std::to_string(carveout) + ",\"parameters\":[" + parameters + "]}";
}

static std::string memset_node(CUgraphNode node, CUdeviceptr workspace) {
    CUDA_MEMSET_NODE_PARAMS p = {};
    CHECK(cuGraphMemsetNodeGetParams(node, &p));
    if (p.height != 1) throw Refused("a memset has more than one row");
    const long long offset = (long long)(p.dst - workspace);
    return "{\"type\":\"memset\",\"offset\":" + std::to_string(offset) + ",\"value\":" + std::to_string(p.value) +
           ",\"element\":" + std::to_string(p.elementSize) + ",\"count\":" + std::to_string(p.width) + "}";
}

static std::vector<CUgraphNode> in_order(CUgraph graph) {
    size_t count = 0, edges = 0;
    CHECK(cuGraphGetNodes(graph, nullptr, &count));
    std::vector<CUgraphNode> nodes(count);
    if (count == 0) throw Refused("nothing was launched on the stream given");
    CHECK(cuGraphGetNodes(graph, nodes.data(), &count));
    CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    std::vector<CUgraphNode> from(edges), to(edges);
    std::vector<CUgraphEdgeData> data(edges);
    if (edges) CHECK(cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges));
    std::map<CUgraphNode, CUgraphNode> next;
    for (size_t i = 0; i < edges; ++i) {
        if (data[i].type != CU_GRAPH_DEPENDENCY_TYPE_DEFAULT) throw Refused("a launch overlaps the one before it");
        if (!next.emplace(from[i], to[i]).second) throw Refused("work was forked to another stream");
    }
    if (edges != count - 1) throw Refused("work was forked to another stream");
    CUgraphNode first = nodes[0];
    for (CUgraphNode node : nodes)
        if (std::find(to.begin(), to.end(), node) == to.end()) first = node;
    std::vector<CUgraphNode> ordered{first};
    while (next.count(ordered.back()) && ordered.size() <= count) ordered.push_back(next[ordered.back()]);
    if (ordered.size() != count) throw Refused("work was forked to another stream");
    return ordered;
}

static std::string plan(CUgraph graph, CUdeviceptr workspace) {
    std::string out;
    for (CUgraphNode node : in_order(graph)) {
        CUgraphNodeType type;
        CHECK(cuGraphNodeGetType(node, &type));
        if (!out.empty()) out += ",";
        if (type == CU_GRAPH_NODE_TYPE_KERNEL) out += kernel_node(node);
        else if (type == CU_GRAPH_NODE_TYPE_MEMSET) out += memset_node(node, workspace);
        else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) throw Refused("the launcher copies memory");
        else if (type == CU_GRAPH_NODE_TYPE_HOST) throw Refused("the launcher enqueues a host callback");
        else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            throw Refused("the launcher allocates memory");
        else throw Refused("the launcher enqueues something other than kernels (node type " + std::to_string(type) + ")");
    }
    return "[" + out + "]";
}

static std::vector<Place> read_places(const char* path) {
    FILE* file = fopen(path, "rb");
    if (!file) throw std::runtime_error("the places cannot be read");
    std::vector<Place> places;
    uint32_t count = 0;
    if (fread(&count, sizeof count, 1, file) != 1 || !is_place(count)) count = 0;
    for (Place place(count); count && fread(place.data(), sizeof(uint64_t), count, file) == count;) places.push_back(place);
    fclose(file);
    if (places.empty()) throw std::runtime_error("there is no place to record at");
    return places;
}

// Calls the candidate's function, which takes as many addresses as a place has but for the last, three sizes, the last
// address, the workspace's, and the stream.
template <size_t... I>
static int call_with(void* function, const Place& at, const int* size, CUstream stream, std::index_sequence<I...>) {
    using Launcher = int (*)(decltype((void)I, (void*)nullptr)..., int, int, int, void*, void*);
    return ((Launcher)function)((void*)at[I]..., size[0], size[1], size[2], (void*)at.back(), stream);
}

template <size_t Count = LEAST_OPERANDS>
static int call_at(void* function, const Place& at, const int* size, CUstream stream) {
    if (at.size() == Count + 1) return call_with(function, at, size, stream, std::make_index_sequence<Count>());
    if constexpr (Count < MOST_OPERANDS) return call_at<Count + 1>(function, at, size, stream);
    throw std::runtime_error("a kernel of so many operands cannot be called");
}

static bool cannot_be_captured(int code) { return code >= 900 && code <= 908; }  // cudaErrorStreamCapture…

static void send(int fd, const std::string& text) {
    for (size_t done = 0; done < text.size();) {
        const ssize_t part = write(fd, text.data() + done, text.size() - done);
        if (part <= 0) _exit(1);
        done += part;
    }
}

// Zeros where the next call's stack will be: padding that a launcher leaves unset then does not hold what an earlier call
// left there, such as other addresses, and a recipe (recipe.py) can be made of its plans.
__attribute__((noinline)) static void clear_stack() {
    char room[64 << 10];
    memset(room, 0, sizeof room);
    asm volatile("" : : "r"(room) : "memory");  // or the compiler leaves it out
}

static std::string record(char** argument) {
    const auto places = read_places(argument[3]);
    const int sizes[] = {atoi(argument[6]), atoi(argument[7]), atoi(argument[8])};
    const CUdevice device = open_device();
    reserve_range(strtoull(argument[4], nullptr, 0));
    back_range(device, strtoull(argument[5], nullptr, 0));
    CUstream stream = CU_STREAM_PER_THREAD;
    if (std::string(argument[9]) == "own") CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    send(atoi(argument[2]), "+");
    void* library = dlopen(argument[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) throw Refused("the shared object could not be loaded");
    void* const launch = dlsym(library, CONTRACT_ENTRY);
    const auto size = (Sizer)dlsym(library, CONTRACT_SIZER);
    if (!launch) throw Refused("no extern \"C\" function " CONTRACT_ENTRY " is defined");
    const size_t workspace = size ? size(sizes[0], sizes[1], sizes[2]) : 0;
    if (workspace > CONTRACT_WORKSPACE_LIMIT) throw Refused("asks for " + std::to_string(workspace) + " bytes of workspace");
    const auto call = [&](const Place& at) {
        clear_stack();
        try {
            return call_at(launch, at, sizes, stream);
        } catch (const std::exception& error) {
            throw Refused(std::string("the launcher threw an exception: ") + error.what());
        } catch (...) {
            throw Refused("the launcher threw an exception");
        }
    };
    if (std::string(argument[10]) == "1") {
        const int code = call(places[0]);
        const CUresult ended = cuCtxSynchronize();
        if (code || ended)
            throw Refused("the call before the recorded ones returned " + error_name((CUresult)(code ? code : (int)ended)));
    }
    std::string plans;
    for (const Place& at : places) {
        CUgraph graph = nullptr;
        CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        const int code = call(at);
        const CUresult ended = cuStreamEndCapture(stream, &graph);
        if (cannot_be_captured(code) || cannot_be_captured(ended))
            throw Refused("the launcher synchronises, allocates or uses another stream: " +
                          error_name((CUresult)(cannot_be_captured(code) ? code : (int)ended)));
        if (code) throw Refused(CONTRACT_ENTRY " returned " + error_name((CUresult)code));
        check(ended, "the capture ended with");
        plans += (plans.empty() ? "" : ",\n") + plan(graph, at.back());
        cuGraphDestroy(graph);
    }
    return "{\"workspace\":" + std::to_string(workspace) + ",\"plans\":[" + plans + "]}";
}

static int answer;

static void ended(const char* how) {
    send(answer, std::string("{\"error\":\"the launcher's process ended: ") + how + "\"}");
    _exit(1);
}

int main(int count, char** argument) {
    if (count != 11) return 2;
    answer = atoi(argument[2]);
    std::set_terminate([] { ended("std::terminate was called, as it is for an exception that is not caught"); });
    signal(SIGABRT, [](int) { ended("abort was called"); });
    std::string out;
    try {
        out = record(argument);
    } catch (const std::exception& error) {
        out = "{\"error\":" + quoted(error.what()) + "}";
    }
    send(atoi(argument[2]), out);
    _exit(0);  // the candidate's destructors have nothing to say
}
