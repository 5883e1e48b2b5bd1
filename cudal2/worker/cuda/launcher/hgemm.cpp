// The library of an exported folder: cudal2.h says what its functions do. No host code of a kernel's author is in it.
//
//   g++ -std=c++17 -O2 -shared -fPIC -I../include hgemm.cpp -lcuda -o ../lib/libcudal2.so
#include <dlfcn.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <map>
#include <shared_mutex>

#include "cudal2.h"
#include "recipe.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Failed : std::runtime_error {
    int status;
    Failed(int status, const std::string& text) : std::runtime_error(text), status(status) {}
};

thread_local std::string message;

// Runs `work`; whatever it throws becomes a status and a message.
template <class Work>
int reported(const Work& work) {
    try {
        work();
        return CUDAL2_SUCCESS;
    } catch (const Failed& error) {
        message = error.what();
        return error.status;
    } catch (const DriverError& error) {
        message = error.what();
        return error.code;
    } catch (const std::exception& error) {
        message = error.what();
        return CUDAL2_FAILED;
    }
}

// The checksum of zlib and PNG, a byte at a time: files are read once.
uint32_t crc32(const char* data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; ++i) {
        crc ^= (unsigned char)data[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

// The head of a recipe's file (recipe.seal). Throws Failed where the file is damaged.
struct Header {
    uint32_t cubin_crc;
    std::string cubin_name;
    size_t workspace, body;  // bytes asked for; where the recipe goes on

    explicit Header(const std::string& file) {
        Reader in = {file.data(), file.data() + file.size()};
        try {
            const std::string magic(in.bytes(8), 8);
            if (magic != std::string("cudal2\0\1", 8)) throw std::runtime_error("this is no recipe of this format");
            const auto crc = in.take<uint32_t>();
            if (crc32(in.at, in.end - in.at) != crc) throw std::runtime_error("its checksum is another");
            cubin_crc = in.take<uint32_t>();
            const auto length = in.take<uint32_t>();
            cubin_name.assign(in.bytes(length), length);
            workspace = in.take<uint64_t>();
            body = in.at - file.data();
        } catch (const std::exception& error) {
            throw Failed(CUDAL2_DAMAGED, std::string("a recipe is damaged: ") + error.what());
        }
    }
};

// Code is loaded even while a stream of this thread is captured: it is no part of the capture.
struct Relaxed {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    Relaxed() { CHECK(cuThreadExchangeStreamCaptureMode(&mode)); }
    ~Relaxed() { cuThreadExchangeStreamCaptureMode(&mode); }
};

CUcontext current_context(const void* matrix) {
    CUcontext context = nullptr;
    CHECK(cuCtxGetCurrent(&context));
    if (!context) {  // a new thread: the runtime and torch use each device's primary context
        int device = 0;
        CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)matrix));
        CHECK(cuDevicePrimaryCtxRetain(&context, device));
        CHECK(cuCtxSetCurrent(context));
    }
    return context;
}

bool aligned(const void* address) { return address && (uintptr_t)address % CUDAL2_ALIGNMENT == 0; }

}  // namespace

struct cudal2_kernel {
    const std::string recipe, cubin;
    const Header header;

    cudal2_kernel(std::string recipe_file, std::string cubin_file)
        : recipe(std::move(recipe_file)), cubin(std::move(cubin_file)), header(recipe) {
        if (crc32(cubin.data(), cubin.size()) != header.cubin_crc)
            throw Failed(CUDAL2_DAMAGED, "a cubin is not the one that its recipe was made for");
    }

    size_t workspace() const { return header.workspace > CUDAL2_SEMAPHORES ? header.workspace : CUDAL2_SEMAPHORES; }

    // Bytes of workspace in this context: none where no launch is told where it lies.
    size_t needs(CUcontext context) { return in_context(context).touches_workspace() ? workspace() : 0; }

    void launch(const void* a, const void* b, void* c, void* workspace, void* stream) {
        if (!aligned(a) || !aligned(b) || !aligned(c) || (workspace && !aligned(workspace)))
            throw Failed(CUDAL2_INVALID, "A, B, C and the workspace begin at multiples of CUDAL2_ALIGNMENT bytes");
        const CUdeviceptr at[Recipe::PLACES] = {
            (CUdeviceptr)a, (CUdeviceptr)b, (CUdeviceptr)c, (CUdeviceptr)workspace};
        Recipe& recipe = in_context(current_context(a));
        if (!workspace && recipe.touches_workspace()) throw Failed(CUDAL2_INVALID, "the kernel needs a workspace");
        recipe.launch(at, (CUstream)stream);
    }

    Recipe& in_context(CUcontext context) {
        {
            const std::shared_lock<std::shared_mutex> reading(mutex);
            const auto found = loaded.find(context);
            if (found != loaded.end() && found->second) return *found->second;
        }
        const std::unique_lock<std::shared_mutex> writing(mutex);
        auto& place = loaded[context];
        if (!place) {
            const Relaxed while_loading;
            const Reader body = {recipe.data() + header.body, recipe.data() + recipe.size()};
            place = std::make_unique<Recipe>(body, cubin.data());
        }
        return *place;
    }

private:
    std::shared_mutex mutex;
    std::map<CUcontext, std::unique_ptr<Recipe>> loaded;
};

namespace {

// The folder above the one that this library was loaded from; empty where that cannot be told. Asked when the library
// is loaded: its name may be relative to a working directory that changes.
std::string find_folder() {
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void*)&cudal2_hgemm, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return "";
    const std::string file = path, lib = file.substr(0, file.rfind('/'));
    return lib.substr(0, lib.rfind('/'));
}
const std::string folder = find_folder();

// Nothing where there is no such file.
bool read_file(const std::string& path, std::string& content) {
    FILE* file = fopen(path.c_str(), "rb");
    if (!file) return false;
    char part[1 << 16];
    for (size_t count; (count = fread(part, 1, sizeof part, file)) > 0;) content.append(part, count);
    const bool complete = !ferror(file);
    fclose(file);
    return complete;
}

// The kernel of a problem, read from the folder when it is first asked for; null where there is none.
cudal2_kernel* find_kernel(const std::array<int, 5>& problem) {
    static std::shared_mutex mutex;
    static std::map<std::array<int, 5>, std::unique_ptr<cudal2_kernel>> kernels;
    {
        const std::shared_lock<std::shared_mutex> reading(mutex);
        const auto found = kernels.find(problem);
        if (found != kernels.end()) return found->second.get();
    }
    const int layout = problem[3], accumulate = problem[4];
    if (layout < 0 || layout > 1 || accumulate < 0 || accumulate > 1)
        throw Failed(CUDAL2_INVALID, "layout is CUDAL2_NN or CUDAL2_TN, accumulate CUDAL2_F32 or CUDAL2_F16");
    std::string name, recipe, cubin;
    for (int i = 0; i < 3; ++i) name += std::to_string(problem[i]) + "_";
    name += std::string(layout == CUDAL2_TN ? "tn" : "nn") + (accumulate == CUDAL2_F16 ? "_f16" : "_f32");
    std::unique_ptr<cudal2_kernel> made;
    if (read_file(folder + "/recipes/" + name + ".recipe", recipe)) {
        const std::string cubin_name = Header(recipe).cubin_name;
        if (cubin_name.find('/') != std::string::npos || !read_file(folder + "/cubins/" + cubin_name, cubin))
            throw Failed(CUDAL2_DAMAGED, "the cubin of " + name + " cannot be read: " + cubin_name);
        made = std::make_unique<cudal2_kernel>(std::move(recipe), std::move(cubin));
    }
    const std::unique_lock<std::shared_mutex> writing(mutex);
    return kernels.emplace(problem, std::move(made)).first->second.get();  // another thread may have been faster
}

}  // namespace

EXPORTED const char* cudal2_message(void) { return message.c_str(); }

EXPORTED size_t cudal2_hgemm_workspace(int M, int N, int K, int layout, int accumulate) {
    size_t bytes = 0;
    reported([&] {
        const auto* kernel = find_kernel({M, N, K, layout, accumulate});
        if (kernel) bytes = kernel->workspace();
    });
    return bytes;
}

EXPORTED int cudal2_hgemm(const void* A, const void* B, void* C, int M, int N, int K, int layout, int accumulate,
                          void* workspace, size_t workspace_bytes, void* stream) {
    return reported([&] {
        auto* kernel = find_kernel({M, N, K, layout, accumulate});
        if (!kernel) throw Failed(CUDAL2_NO_KERNEL, "there is no kernel for this problem in " + folder);
        if (workspace_bytes < kernel->workspace())
            throw Failed(CUDAL2_INVALID, "the kernel needs " + std::to_string(kernel->workspace()) + " bytes of workspace");
        kernel->launch(A, B, C, workspace, stream);
    });
}

EXPORTED int cudal2_load(const void* recipe, size_t recipe_bytes, const void* cubin, size_t cubin_bytes,
                         cudal2_kernel** kernel, size_t* workspace_bytes) {
    return reported([&] {
        *kernel = new cudal2_kernel(
            std::string((const char*)recipe, recipe_bytes), std::string((const char*)cubin, cubin_bytes));
        *workspace_bytes = (*kernel)->workspace();
    });
}

EXPORTED int cudal2_launch(cudal2_kernel* kernel, const void* A, const void* B, void* C, void* workspace, void* stream) {
    return reported([&] { kernel->launch(A, B, C, workspace, stream); });
}

EXPORTED int cudal2_prepare(cudal2_kernel* kernel) {
    return reported([&] {
        CUcontext context = nullptr;
        CHECK(cuCtxGetCurrent(&context));
        if (!context) throw Failed(CUDAL2_INVALID, "no context is current to this thread");
        kernel->in_context(context);
    });
}

EXPORTED int cudal2_needs(cudal2_kernel* kernel, const void* A, size_t* workspace_bytes) {
    return reported([&] { *workspace_bytes = kernel->needs(current_context(A)); });
}

EXPORTED int cudal2_capturing(void* stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUcontext current = nullptr;
    // The default stream of a thread that never used the GPU: nothing is captured on it.
    if (!stream && !cuCtxGetCurrent(&current) && !current) return 0;
    if (reported([&] { CHECK(cuStreamIsCapturing((CUstream)stream, &status)); })) return CUDAL2_FAILED;
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

EXPORTED int cudal2_workspace(const void* A, size_t bytes, void* stream, void** workspace) {
    return reported([&] {
        current_context(A);
        if (!*workspace) {
            const Relaxed while_another_thread_may_capture;
            CUdeviceptr made = 0;
            CHECK(cuMemAlloc(&made, bytes > CUDAL2_SEMAPHORES ? bytes : CUDAL2_SEMAPHORES));
            *workspace = (void*)made;
        }
        CHECK(cuMemsetD8Async((CUdeviceptr)*workspace, 0, CUDAL2_SEMAPHORES, (CUstream)stream));
    });
}

EXPORTED int cudal2_copy(void* to, const void* from, size_t bytes, void* stream) {
    return reported([&] {
        current_context(to);
        CHECK(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, (CUstream)stream));
    });
}
