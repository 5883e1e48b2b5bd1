// expect: wrong launch_error
// A thread says "done" ahead of time, all the time.
#include <atomic>
#include <cstdint>
#include <memory>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" long write(int, const void*, unsigned long);
extern "C" int usleep(unsigned);
static void* lie(void*) {
    const uint32_t done[4] = {0, 0, 0, 0};
    for (;;) {
        write(101, done, sizeof done);
        usleep(500);
    }
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static std::atomic<bool> started{false};
    if (!started.exchange(true)) {
        pthread_t thread;
        pthread_create(&thread, nullptr, lie, nullptr);
    }
    for (int i = 0; i < 50; ++i) usleep(1000);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
    return 0;
}
