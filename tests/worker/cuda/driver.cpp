// A driver of CUDA without a GPU, for the runner's protocol: a cubin is the text "name cost", a launch of its kernel moves
// the clock on by `cost` seconds, nothing is computed. A kernel whose module was unloaded is CUDA_ERROR_NOT_FOUND. Of our
// own kernels `touch` does in a graph what history.h says, on a file that lies where the buffers would.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

struct CUmod_st { double cost; std::string name; };
struct CUfunc_st { CUmodule module; double cost; bool touch; };
struct Touch { uint64_t where, source; uint16_t value, unused[3]; };
struct Touches { Touch list[5]; uint32_t count; };  // as the kernel is given them
struct Call { CUfunction function; Touches touches; };
struct CUgraph_st { std::vector<Call> calls; };
struct CUgraphExec_st { std::vector<Call> calls; };
struct CUevent_st { double time; };
static std::set<CUmodule> loaded;
static double now;

static CUresult call(CUfunction function) {
    if (!loaded.count(function->module)) return CUDA_ERROR_NOT_FOUND;
    now += function->cost;
    return CUDA_SUCCESS;
}

#define DONE { return CUDA_SUCCESS; }
CUresult cuInit(unsigned) DONE
CUresult cuDeviceGet(CUdevice*, int) DONE
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice) { return getenv("FULL") ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) DONE
CUresult cuCtxGetCurrent(CUcontext* context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void*, CUpointer_attribute, CUdeviceptr) DONE
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus*) DONE
CUresult cuMemAlloc(CUdeviceptr*, size_t) DONE
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) DONE
CUresult cuMemAddressReserve(CUdeviceptr* base, size_t, size_t, CUdeviceptr hint, unsigned long long) {
    const char* taken = getenv("TAKEN");
    *base = taken && strtoull(taken, nullptr, 0) == hint ? 4096 : hint;
    return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* made, void* file, CUmemAllocationHandleType) {
    *made = (CUmemGenericAllocationHandle)file;
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle file, unsigned long long) {
    const void* got = mmap((void*)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)file, 0);
    return got == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) DONE
CUresult cuStreamCreate(CUstream* stream, unsigned) { *stream = (CUstream)1; return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) DONE
CUresult cuEventCreate(CUevent* event, unsigned) { *event = new CUevent_st{0}; return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream) { event->time = now; return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* ms, CUevent a, CUevent b) { *ms = 1e3 * (b->time - a->time); return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    char name[64] = "spin";
    double cost = 100;  // our own kernels stand outside what is timed
    if (!strstr((const char*)image, ".version") && sscanf((const char*)image, "%63s %lf", name, &cost) != 2)
        return CUDA_ERROR_INVALID_IMAGE;
    *module = new CUmod_st{cost, name};
    loaded.insert(*module);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return loaded.erase(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    if (module->name != "spin" && module->name != name) return CUDA_ERROR_NOT_FOUND;
    *function = new CUfunc_st{module, module->cost, module->name == "spin" && !strcmp(name, "touch")};
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { *value = 0; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) DONE
CUresult cuFuncGetParamInfo(CUfunction, size_t, size_t*, size_t*) { return CUDA_ERROR_INVALID_VALUE; }
CUresult cuGraphCreate(CUgraph* graph, unsigned) { *graph = new CUgraph_st; return CUDA_SUCCESS; }
CUresult cuGraphAddKernelNode(CUgraphNode*, CUgraph graph, const CUgraphNode*, size_t, const CUDA_KERNEL_NODE_PARAMS* p) {
    graph->calls.push_back({p->func, p->func->touch ? *(Touches*)p->kernelParams[0] : Touches{}});
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemsetNode(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_MEMSET_NODE_PARAMS*, CUcontext) DONE
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode, CUkernelNodeAttrID, const CUkernelNodeAttrValue*) DONE
CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
    *executable = new CUgraphExec_st{graph->calls};
    return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec, CUstream) DONE
CUresult cuGraphDestroy(CUgraph graph) { delete graph; return CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec executable) { delete executable; return CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec executable, CUstream) {
    for (const Call& one : executable->calls) {
        if (CUresult code = call(one.function)) return code;
        for (uint32_t i = 0; i < one.touches.count; ++i) {
            const Touch& touch = one.touches.list[i];
            *(uint16_t*)touch.where = (touch.source ? *(uint16_t*)touch.source : 0) ^ touch.value;
        }
    }
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**) { return call(function); }
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction function, void**, void**) { return call(function); }
CUresult cuMemcpyDtoDAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream) DONE
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream) DONE
CUresult cuMemsetD16Async(CUdeviceptr, unsigned short, size_t, CUstream) DONE
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream) DONE
CUresult cuGetErrorName(CUresult code, const char** name) { *name = code == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "an error"; return CUDA_SUCCESS; }
