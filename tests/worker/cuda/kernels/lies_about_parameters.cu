// expect: plan_error launch_error out_of_bounds wrong timeout
// Writes a plan whose kernel gets parameters of the wrong size.
#include <cuda_fp16.h>

__device__ float dot(const __half* a, const __half* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += __half2float(a[k]) * __half2float(b[k]);
    return sum;
}

__global__ void multiply(const __half* A, const __half* B, __half* C, int M, int N, int K) {
    const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || col >= N) return;
    C[(size_t)row * N + col] = __float2half(dot(A + (size_t)row * K, B + (size_t)col * K, K));
}

extern "C" long put(int, const void*, unsigned long) __asm__("write");
extern "C" void leave(int) __asm__("_exit");

struct Large {
    int numbers[512];
};
extern "C" __global__ void take(Large large) {
    if (large.numbers[511] == 12345) __trap();
}

extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace,
                             cudaStream_t stream) {
    static const char head[] = "{\"workspace\":0,\"plans\":[";
    static const char node[] =
        "[{\"type\":\"kernel\",\"name\":\"take\",\"grid\":[1,1,1],\"block\":[1,1,1],\"cluster\":[0,0,0],\"shared\":0,"
        "\"cooperative\":false,\"scheduling\":0,\"carveout\":-1,\"parameters\":[\"00\"]}]";
    const size_t set = 2 * ((size_t)M * K + (size_t)K * N + (size_t)M * N);
    const int sets = (int)(((size_t)200 * 1048576 + set - 1) / set);
    for (int file = 3; file < 256; ++file) {
        put(file, head, sizeof head - 1);
        for (int i = 0; i < sets; ++i) {
            if (i) put(file, ",", 1);
            put(file, node, sizeof node - 1);
        }
        put(file, "]}", 2);
    }
    leave(0);
    return cudaSuccess;
}
