// Launches a candidate's shared object on buffers of its own, for a tool that watches a whole process (compute-sanitizer):
//
//   launch KERNEL.so NORMALS M N K CALLS BYTES_OF_A BYTES_OF_B ... BYTES_OF_C
//
// NORMALS is a file of numbers of the operands' type, which all operands hold, over and over. Ends with 0 if every call
// could be enqueued and ran. Whether the result is right is the worker's business, not looked at here.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static void* operand(size_t bytes, const std::string& normals) {
    void* memory;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    for (size_t at = 0; at < bytes; at += normals.size()) {
        const size_t part = std::min(normals.size(), bytes - at);
        check(cudaMemcpy((char*)memory + at, normals.data(), part, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    return memory;
}

struct Call {
    int M, N, K;
    void* workspace;
    cudaStream_t stream;
};

template <class... Addresses>
static cudaError_t call(void* function, const Call& with, const std::vector<void*>& given, Addresses... addresses) {
    if (sizeof...(addresses) == given.size()) {
        using Entry = cudaError_t (*)(Addresses..., int, int, int, void*, cudaStream_t);
        return ((Entry)function)(addresses..., with.M, with.N, with.K, with.workspace, with.stream);
    }
    if constexpr (sizeof...(addresses) < 8) return call(function, with, given, addresses..., given[sizeof...(addresses)]);
    return cudaErrorInvalidValue;
}

int main(int count, char** argument) {
    if (count < 10) return 2;
    void* library = dlopen(argument[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    std::ifstream file(argument[2], std::ios::binary);
    const std::string normals((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (normals.empty()) return fprintf(stderr, "%s holds nothing\n", argument[2]), 2;
    Call with = {atoi(argument[3]), atoi(argument[4]), atoi(argument[5])};
    const auto hgemm = dlsym(library, "hgemm");
    const auto asked = (size_t (*)(int, int, int))dlsym(library, "hgemm_workspace");
    std::vector<void*> given;
    for (int i = 7; i < count; ++i) given.push_back(operand(strtoull(argument[i], nullptr, 10), normals));
    const size_t bytes = asked ? asked(with.M, with.N, with.K) : 0;
    if (bytes) {
        check(cudaMalloc(&with.workspace, bytes), "cudaMalloc of the workspace");
        // its head is zero before the first call
        check(cudaMemset(with.workspace, 0, bytes < 16384 ? bytes : 16384), "cudaMemset");
    }
    check(cudaStreamCreate(&with.stream), "cudaStreamCreate");
    check(cudaDeviceSynchronize(), "preparation");
    for (int i = 0; i < atoi(argument[6]); ++i) check(call(hgemm, with, given), "hgemm");
    check(cudaStreamSynchronize(with.stream), "the kernels");
    return 0;
}
