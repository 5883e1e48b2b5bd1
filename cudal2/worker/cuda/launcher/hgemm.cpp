// The library of an exported folder: cudal2.h says what its functions do. No host code of a kernel's author is in it.
//
//   g++ -std=c++17 -O2 -shared -fPIC -I../include hgemm.cpp -lcuda -o ../lib/libcudal2.so
#include <array>
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

// A recipe's file (recipe.seal). Throws Failed where it is damaged.
struct Header {
    uint32_t cubin_crc;
    std::string cubin_name;
    std::unique_ptr<Contents> body;

    explicit Header(const std::string& file) {
        Reader in = {file.data(), file.data() + file.size()};
        try {
            const std::string magic(in.bytes(7), 7);
            const int format = *in.bytes(1);
            if (magic != std::string("cudal2\0", 7) || format < 1 || format > 2)
                throw std::runtime_error("this is no recipe of this format");
            const auto crc = in.take<uint32_t>();
            if (crc32(in.at, in.end - in.at) != crc) throw std::runtime_error("its checksum is another");
            cubin_crc = in.take<uint32_t>();
            const auto length = in.take<uint32_t>();
            cubin_name.assign(in.bytes(length), length);
            body = std::make_unique<Contents>(in, format);
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

    size_t workspace() const { return std::max<size_t>(header.body->workspace, CUDAL2_SEMAPHORES); }

    // Its number of rows, 0 where it does not say.
    int only() const { return header.body->rows.empty() ? 0 : header.body->rows.begin()->first; }
    bool several() const { return header.body->rows.size() > 1; }
    bool serves(int m) const { return header.body->rows.empty() || header.body->rows.count(m); }

    // Bytes of workspace in this context: none where no launch is told where it lies.
    size_t needs(CUcontext context) { return in_context(context).touches_workspace() ? workspace() : 0; }

    // An M of 0 is the only one that the recipe is for; M does not matter where it does not say which.
    void launch(const void* const* operands, int count, int m, void* workspace, void* stream) {
        if (count != (int)header.body->operands)
            throw Failed(CUDAL2_INVALID, "the kernel takes " + std::to_string(header.body->operands) + " operands");
        if (!m && !several()) m = only();
        if (!serves(m)) throw Failed(CUDAL2_NO_KERNEL, "the kernel is for other numbers of rows");
        bool fit = !workspace || aligned(workspace);
        std::array<CUdeviceptr, 65> at;
        for (int i = 0; i < count; ++i) fit = fit && aligned(operands[i]), at[i] = (CUdeviceptr)operands[i];
        if (!fit) throw Failed(CUDAL2_INVALID, "operands and workspace begin at multiples of CUDAL2_ALIGNMENT bytes");
        at[count] = (CUdeviceptr)workspace;
        Recipe& recipe = in_context(current_context(operands[0]));
        if (!workspace && recipe.touches_workspace()) throw Failed(CUDAL2_INVALID, "the kernel needs a workspace");
        recipe.launch(at.data(), m, (CUstream)stream);
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
            place = std::make_unique<Recipe>(*header.body, cubin.data());
        }
        return *place;
    }

private:
    std::shared_mutex mutex;
    std::map<CUcontext, std::unique_ptr<Recipe>> loaded;
};

#include "folder.h"

namespace {

void call(const Wanted& problem, const void* const* operands, int count, void* workspace, size_t bytes, void* stream) {
    auto* kernel = find_kernel(problem);
    if (!kernel) throw Failed(CUDAL2_NO_KERNEL, "there is no kernel for this problem in " + folder);
    if (bytes < kernel->workspace())
        throw Failed(CUDAL2_INVALID, "the kernel needs " + std::to_string(kernel->workspace()) + " bytes of workspace");
    kernel->launch(operands, count, problem.m, workspace, stream);
}

size_t workspace_of(const Wanted& problem) {
    const auto* kernel = find_kernel(problem);
    return kernel ? kernel->workspace() : 0;
}

}  // namespace

EXPORTED const char* cudal2_message(void) { return message.c_str(); }

EXPORTED size_t cudal2_hgemm_workspace(int M, int N, int K, int layout, int accumulate) {
    size_t bytes = 0;
    reported([&] { bytes = workspace_of({M, N, K, layout, accumulate, ""}); });
    return bytes;
}

EXPORTED int cudal2_hgemm(const void* A, const void* B, void* C, int M, int N, int K, int layout, int accumulate,
                          void* workspace, size_t workspace_bytes, void* stream) {
    const void* operands[] = {A, B, C};
    return reported([&] { call({M, N, K, layout, accumulate, ""}, operands, 3, workspace, workspace_bytes, stream); });
}

EXPORTED size_t cudal2_gemm_workspace(const cudal2_problem* problem) {
    size_t bytes = 0;
    reported([&] { bytes = workspace_of(wanted(*problem)); });
    return bytes;
}

EXPORTED int cudal2_gemm(const cudal2_problem* problem, const void* const* operands, int count, void* workspace,
                         size_t workspace_bytes, void* stream) {
    return reported([&] { call(wanted(*problem), operands, count, workspace, workspace_bytes, stream); });
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
    const void* operands[] = {A, B, C};
    return reported([&] {
        if (kernel->several()) throw Failed(CUDAL2_INVALID, "the kernel is for several numbers of rows: cudal2_run");
        kernel->launch(operands, 3, 0, workspace, stream);
    });
}

EXPORTED int cudal2_run(cudal2_kernel* kernel, const void* const* operands, int count, int M, void* workspace, void* stream) {
    return reported([&] { kernel->launch(operands, count, M, workspace, stream); });
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
