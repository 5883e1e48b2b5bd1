// Times one library call and a synchronise on the host's clock, over and over, with nothing of Python between.
//
// Compiled and loaded by hosttime.py, whose structures mirror these. Argument orders are those of cublasLt.h and
// cublas_v2.h; their types are spelt out here so that no CUDA header is needed.
#include <errno.h>
#include <time.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>

namespace {

struct Loop {
    const void* const* a;  // device addresses of every set
    const void* const* b;
    void* const* c;
    const void* const* bias;  // null where there is none
    int64_t sets, calls;
    double mean_gap;  // nanoseconds, 0 for none
    uint64_t seed;
    int (*synchronise)(void* stream);
    void* stream;
    int (*touch)(void* ours, const void* touches, size_t count, void* stream);  // before each call, outside its time
    void* ours;
    const char* touches;  // `each` for each call, of TOUCH bytes
    size_t each;          // 0 for none
};
constexpr int BIAS_POINTER = 8;  // CUBLASLT_MATMUL_DESC_BIAS_POINTER
constexpr size_t TOUCH = 24;  // sizeof(Touch) of history.h

struct Lt {
    int (*matmul)(void* handle, void* operation, const void* alpha, const void* a, void* a_layout, const void* b,
                  void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                  const void* algorithm, void* workspace, size_t workspace_bytes, void* stream);
    int (*describe)(void* operation, int attribute, const void* value, size_t bytes);  // null where nothing is added
    void *handle, *operation, *a_layout, *b_layout, *c_layout;
    const void *alpha, *beta, *algorithm;
    void* workspace;
    size_t workspace_bytes;
};

struct GemmEx {
    int (*gemm)(void* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int a_type,
                int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute,
                int algorithm);
    void* handle;
    const void *alpha, *beta;
    int transa, transb, m, n, k, lda, ldb, ldc, type, compute, algorithm;
};

int64_t now() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}

// Asleep until shortly before, so that the processor idles as a server's would; then spinning, because a sleep ends
// late by the kernel's timer slack (50 µs by default).
void wait_until(int64_t deadline) {
    constexpr int64_t spin = 100'000;
    const int64_t wake = deadline - spin;
    if (wake > now()) {
        const timespec at{wake / 1'000'000'000, wake % 1'000'000'000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {}
    }
    while (now() < deadline) {}
}

// Seconds of each call. Returns 0, or what the library returned, or minus what the synchronise or a touch returned.
template <class Call>
int timed(const Loop& loop, double* seconds, const Call& call) {
    std::mt19937_64 random(loop.seed);
    for (int64_t i = 0; i < loop.calls; ++i) {
        if (loop.mean_gap > 0) {
            const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // in [0, 1)
            wait_until(now() - static_cast<int64_t>(loop.mean_gap * std::log1p(-uniform)));
        }
        if (loop.each) {
            const char* ahead = loop.touches + i * loop.each * TOUCH;
            if (const int status = loop.touch(loop.ours, ahead, loop.each, loop.stream)) return -status;
        }
        const int64_t set = i % loop.sets, started = now();
        if (const int status = call(set)) return status;
        if (const int status = loop.synchronise(loop.stream)) return -status;
        seconds[i] = static_cast<double>(now() - started) * 1e-9;
    }
    return 0;
}

}  // namespace

extern "C" int time_lt(const Lt* lt, const Loop* loop, double* seconds) {
    return timed(*loop, seconds, [&](int64_t set) {
        if (lt->describe)
            if (const int status = lt->describe(lt->operation, BIAS_POINTER, &loop->bias[set], sizeof(void*))) return status;
        // Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ: the library's first operand is our B.
        return lt->matmul(lt->handle, lt->operation, lt->alpha, loop->b[set], lt->a_layout, loop->a[set], lt->b_layout,
                          lt->beta, loop->c[set], lt->c_layout, loop->c[set], lt->c_layout, lt->algorithm,
                          lt->workspace, lt->workspace_bytes, loop->stream);
    });
}

extern "C" int time_gemm_ex(const GemmEx* g, const Loop* loop, double* seconds) {
    return timed(*loop, seconds, [&](int64_t set) {
        return g->gemm(g->handle, g->transa, g->transb, g->m, g->n, g->k, g->alpha, loop->b[set], g->type, g->lda,
                       loop->a[set], g->type, g->ldb, g->beta, loop->c[set], g->type, g->ldc, g->compute, g->algorithm);
    });
}

// For what can only be called from Python, whose overhead is then in the figure.
extern "C" int time_callback(int (*call)(int64_t set), const Loop* loop, double* seconds) {
    return timed(*loop, seconds, call);
}
