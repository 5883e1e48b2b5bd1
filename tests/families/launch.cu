// Launches a candidate's shared object on buffers of its own, for a tool that watches a whole process (compute-sanitizer):
//
//   launch KERNEL.so M N K CALLS
//
// Ends with 0 if every call could be enqueued and ran. Whether the result is right is the worker's business, not looked at here.
#include <cuda_fp16.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

static void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static __global__ void fill(__half* to, size_t count, unsigned seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        unsigned x = (unsigned)i * 2654435761u + seed;
        x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
        to[i] = __float2half((float)(int)(x & 0xFFFF) / 32768.0f - 1.0f);
    }
}

static __half* matrix(size_t count, unsigned seed) {
    __half* memory;
    check(cudaMalloc(&memory, count * sizeof(__half)), "cudaMalloc");
    fill<<<256, 256>>>(memory, count, seed);
    return memory;
}

int main(int count, char** argument) {
    if (count != 6) return 2;
    void* library = dlopen(argument[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    const int M = atoi(argument[2]), N = atoi(argument[3]), K = atoi(argument[4]), calls = atoi(argument[5]);
    using Hgemm = cudaError_t (*)(const __half*, const __half*, __half*, int, int, int, void*, cudaStream_t);
    const auto hgemm = (Hgemm)dlsym(library, "hgemm");
    const auto asked = (size_t (*)(int, int, int))dlsym(library, "hgemm_workspace");
    __half *A = matrix((size_t)M * K, 1), *B = matrix((size_t)N * K, 2), *C = matrix((size_t)M * N, 3);
    const size_t bytes = asked ? asked(M, N, K) : 0;
    void* workspace = nullptr;
    if (bytes) {
        check(cudaMalloc(&workspace, bytes), "cudaMalloc of the workspace");
        check(cudaMemset(workspace, 0, bytes < 16384 ? bytes : 16384), "cudaMemset");  // its head is zero before the first call
    }
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    check(cudaDeviceSynchronize(), "preparation");
    for (int i = 0; i < calls; ++i) check(hgemm(A, B, C, M, N, K, workspace, stream), "hgemm");
    check(cudaStreamSynchronize(stream), "the kernels");
    return 0;
}
