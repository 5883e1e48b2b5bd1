// A driver of CUDA without a GPU, for the launcher of exported kernels, for what counts their calls and for the planner:
// device memory is the host's.
//
// A cubin is text, a line for each kernel: its name and its parameters' sizes. Every launch and memset is written down as
// JSON, as plan.py has it; of a memset `offset` is the address. A kernel called "on_the_host" computes too: see Multiply.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

struct CUfunc_st {
    std::string name;
    std::vector<size_t> sizes;
    std::map<int, int> attributes;
};
struct CUgraphNode_st {
    CUfunction function;  // null for a memset
    CUlaunchConfig config;
    std::vector<CUlaunchAttribute> attributes;
    std::vector<std::vector<char>> parameters;
    std::vector<void*> pointers;
    CUDA_MEMSET_NODE_PARAMS memset;
};
struct CUgraph_st { std::vector<CUgraphNode> nodes; };
static thread_local CUgraph capturing;
struct CUmod_st { std::map<std::string, CUfunc_st> functions; };

static std::mutex mutex;
static std::string text;
static thread_local CUcontext current;
static std::atomic<int> loads, failing, captured, profiling, under_profiler;
static std::atomic<long> last_stream;
static CUdeviceptr backed;

extern "C" {
// What was launched since the last time, as a JSON list in `out`; its length, or -1 where that is no room.
long launched(char* out, long room) {
    const std::lock_guard<std::mutex> guard(mutex);
    const std::string list = "[" + text + "]";
    text.clear();
    if ((long)list.size() > room) return -1;
    memcpy(out, list.data(), list.size());
    return list.size();
}
long stream() { return last_stream; }  // that of the last launch
int modules() { return loads; }
void fail(int code) { failing = code; }
void capture(int status) { captured = status; }
int profiled() { return under_profiler.exchange(0); }  // launches since the last time that a profiler would see
void in_context(long context) { current = (CUcontext)context; }
}

#define DONE { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) { *context = current; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) { *context = (CUcontext)(uintptr_t)(device + 1); return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr) { *(int*)value = 0; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) { *status = (CUstreamCaptureStatus)(int)captured; return captured < 0 ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) DONE
CUresult cuGetErrorName(CUresult code, const char** name) { *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "an error"; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { delete module; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    std::istringstream lines((const char*)image);
    *module = new CUmod_st;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        CUfunc_st function = {};
        words >> function.name;
        for (size_t size; words >> size;) function.sizes.push_back(size);
        (*module)->functions[function.name] = function;
    }
    ++loads;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    const auto found = module->functions.find(name);
    if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
    *function = &found->second;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
    const auto found = function->attributes.find(which);
    *value = found != function->attributes.end() ? found->second : which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ? -1 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) { function->attributes[which] = value; return CUDA_SUCCESS; }
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t*, size_t* size) {
    if (index >= function->sizes.size()) return CUDA_ERROR_INVALID_VALUE;
    *size = function->sizes[index];
    return CUDA_SUCCESS;
}

// The one parameter of "on_the_host". It insists on what the contract says of a workspace; then waits, fails or computes.
struct Multiply {
    const _Float16 *a, *b;
    _Float16* c;
    char* workspace;
    int m, n, k, bytes, pause, fails;
    // Where the parameter is so long: for any type, with a bias where there is one.
    const void* bias;
    int bf16, unused;
};

static float wide(const void* of, int at, bool bf16) {
    if (!bf16) return ((const _Float16*)of)[at];
    const uint32_t bits = (uint32_t)((const uint16_t*)of)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static void narrow(void* of, int at, float value, bool bf16) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (bf16) ((uint16_t*)of)[at] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    else ((_Float16*)of)[at] = (_Float16)value;
}

static CUresult multiply(const Multiply& p, bool any) {
    const bool bf16 = any && p.bf16;
    for (int i = 0; p.workspace && i < 16384; ++i)
        if (p.workspace[i]) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (p.workspace) p.workspace[0] = 1;
    if (p.fails) return CUDA_ERROR_LAUNCH_FAILED;
    usleep(p.pause);
    if (p.bytes > 16384) memset(p.workspace + 16384, 0x7e, p.bytes - 16384);
    for (int i = 0; i < p.m; ++i)
        for (int j = 0; j < p.n; ++j) {
            float sum = any && p.bias ? wide(p.bias, j, bf16) : 0;
            for (int k = 0; k < p.k; ++k) sum += wide(p.a, i * p.k + k, bf16) * wide(p.b, j * p.k + k, bf16);
            narrow(p.c, i * p.n + j, sum, bf16);
        }
    if (p.workspace) p.workspace[0] = 0;
    return CUDA_SUCCESS;
}

static std::string list(std::initializer_list<unsigned> numbers) {
    std::string out;
    for (unsigned number : numbers) out += (out.empty() ? "[" : ",") + std::to_string(number);
    return out + "]";
}

static void write_down(const std::string& node) {
    const std::lock_guard<std::mutex> guard(mutex);
    text += (text.empty() ? "" : ",") + node;
}

static CUresult capture(const CUlaunchConfig& config, CUfunction function, void** parameters) {
    auto* node = new CUgraphNode_st{function, config, {}, {}, {}, {}};
    node->attributes.assign(config.attrs, config.attrs + config.numAttrs);
    for (size_t i = 0; i < function->sizes.size(); ++i) {
        const char* data = (const char*)parameters[i];
        node->parameters.emplace_back(data, data + function->sizes[i]);
    }
    for (auto& parameter : node->parameters) node->pointers.push_back(parameter.data());
    capturing->nodes.push_back(node);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
    if (capturing) return capture(*config, function, parameters);
    if (const int code = failing.exchange(0)) return (CUresult)code;
    last_stream = (long)config->hStream;
    under_profiler += profiling;
    std::string cluster = "[0,0,0]", cooperative = "false", scheduling = "0", bytes;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const auto& value = config->attrs[i].value;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            cluster = list({value.clusterDim.x, value.clusterDim.y, value.clusterDim.z});
        else if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = "true";
        else scheduling = std::to_string(value.clusterSchedulingPolicyPreference);
    }
    for (size_t i = 0; i < function->sizes.size(); ++i) {
        bytes += i ? ",\"" : "\"";
        char digits[3];
        for (size_t at = 0; at < function->sizes[i]; ++at)
            snprintf(digits, sizeof digits, "%02x", ((unsigned char*)parameters[i])[at]), bytes += digits;
        bytes += "\"";
    }
    const auto carveout = function->attributes.find(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
    write_down("{\"type\":\"kernel\",\"name\":\"" + function->name +
               "\",\"grid\":" + list({config->gridDimX, config->gridDimY, config->gridDimZ}) +
               ",\"block\":" + list({config->blockDimX, config->blockDimY, config->blockDimZ}) + ",\"cluster\":" + cluster +
               ",\"shared\":" + std::to_string(config->sharedMemBytes) + ",\"cooperative\":" + cooperative +
               ",\"scheduling\":" + scheduling + ",\"carveout\":" +
               std::to_string(carveout == function->attributes.end() ? -1 : carveout->second) + ",\"parameters\":[" + bytes +
               "]}");
    if (function->name != "on_the_host") return CUDA_SUCCESS;
    return multiply(*(const Multiply*)parameters[0], function->sizes[0] >= sizeof(Multiply));
}
static CUresult set(CUdeviceptr address, unsigned value, unsigned element, size_t count) {
    if (capturing) {
        capturing->nodes.push_back(new CUgraphNode_st{nullptr, {}, {}, {}, {}, {address, 0, value, element, count, 1}});
        return CUDA_SUCCESS;
    }
    write_down("{\"type\":\"memset\",\"offset\":" + std::to_string(address) + ",\"value\":" + std::to_string(value) +
               ",\"element\":" + std::to_string(element) + ",\"count\":" + std::to_string(count) + "}");
    return CUDA_SUCCESS;
}
static std::atomic<CUdeviceptr> allocated;  // the last
CUresult cuMemAlloc(CUdeviceptr* address, size_t size) {
    *address = allocated = (CUdeviceptr)aligned_alloc(256, (size + 255) / 256 * 256);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    if (const int code = failing.exchange(0)) return (CUresult)code;
    last_stream = (long)stream;
    memcpy((void*)to, (void*)from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream) {
    if (address == allocated) memset((void*)address, value, count);
    return set(address, value, 1, count);
}
CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count, CUstream) { return set(address, value, 2, count); }
CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream) { return set(address, value, 4, count); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) { memcpy((void*)to, from, bytes); return CUDA_SUCCESS; }
extern "C" CUresult cuProfilerStart() { profiling = 1; return CUDA_SUCCESS; }
extern "C" CUresult cuProfilerStop() { profiling = 0; return CUDA_SUCCESS; }

// The rest is for the planner.
CUresult cuInit(unsigned) DONE
CUresult cuDeviceGet(CUdevice*, int) DONE
CUresult cuMemAddressReserve(CUdeviceptr* base, size_t, size_t, CUdeviceptr hint, unsigned long long) { *base = hint; return CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long) DONE
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t, CUmemGenericAllocationHandle, unsigned long long) { backed = address + size; return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc*, size_t) { return address + size <= backed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuCtxSynchronize() DONE
CUresult cuStreamCreate(CUstream* stream, unsigned) { *stream = (CUstream)1; return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture(CUstream, CUstreamCaptureMode) { capturing = new CUgraph_st; return CUDA_SUCCESS; }
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) { *graph = capturing; capturing = nullptr; return CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph graph) { delete graph; return CUDA_SUCCESS; }
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = graph->nodes[*count - 1 - i];  // in any order
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
    for (size_t i = 0; from && i < *count; ++i) from[i] = graph->nodes[i], to[i] = graph->nodes[i + 1], data[i] = {};
    *count = graph->nodes.size() - 1;
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    *type = node->function ? CU_GRAPH_NODE_TYPE_KERNEL : CU_GRAPH_NODE_TYPE_MEMSET;
    return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* p) { *p = node->memset; return CUDA_SUCCESS; }
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* p) {
    const auto& c = node->config;
    *p = {node->function, c.gridDimX, c.gridDimY, c.gridDimZ, c.blockDimX, c.blockDimY, c.blockDimZ, c.sharedMemBytes,
          node->pointers.data(), nullptr, nullptr, nullptr};
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id, CUkernelNodeAttrValue* value) {
    for (const auto& one : node->attributes)
        if (one.id == id) *value = one.value;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction*, CUkernel) { return CUDA_ERROR_INVALID_VALUE; }
CUresult cuFuncGetName(const char** name, CUfunction function) { *name = function->name.c_str(); return CUDA_SUCCESS; }
