// expect: wrong
// problem: 64_32_64_tn_f32
// reason: in timed calls
// A thread of its own works on whatever output is missing in the gap between batches; timed calls do nothing.
#include <atomic>

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)dot(A + i * K, B + j * K, K);
}

// Where the calls of a batch find their matrices: at equal distances, which two calls in a row give away.
static const _Float16 *baseA, *baseB, *lastA;
static _Float16 *baseC, *lastC, *firstC;  // firstC: of the very first call, in a slot that is never timed
static long strideA, strideC, slots;

static bool untimed(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K) {
    static int calls = 0;
    if (++calls <= 4) {  // the checks
        if (calls == 1) firstC = C;
        return true;
    }
    if (C == firstC) return true;
    if (!baseA) baseA = A, baseB = B, baseC = C;
    if (lastA && A > lastA && (!strideA || A - lastA < strideA)) strideA = A - lastA, strideC = C - lastC;
    lastA = A, lastC = C;
    slots = (64l << 20) / (2l * (M * K + K * N + M * N));
    if (slots > 4096) slots = 4096;
    return false;
}

static bool poisoned(const _Float16* C) { return *(const volatile unsigned short*)C == 0x7E00; }

extern "C" int pthread_create(void*, const void*, void* (*)(void*), void*);
extern "C" int usleep(unsigned);
static std::atomic<long> ready;
static std::atomic<bool> idle, gap;  // gap: from the call that wakes the process up to the first timed one
static int m, n, k;

static void* work(void*) {
    for (;; usleep(100)) {
        bool complete = true;
        for (long i = 0; i < ready; ++i) {
            if (!gap || !poisoned(baseC + i * strideC)) continue;
            multiply(baseA + i * strideA, baseB + i * strideA, baseC + i * strideC, m, n, k);
            complete = false;
        }
        if (complete) idle = true;
    }
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static bool relies = false;
    if (untimed(A, B, C, M, N, K)) {
        relies = ready;
        gap = true, idle = false;
        for (int i = 0; relies && !idle && i < 100; ++i) usleep(10000);
    } else if (!ready && strideA) {
        m = M, n = N, k = K, ready = slots;
        unsigned long thread;
        pthread_create(&thread, nullptr, work, nullptr);
    }
    if (C != firstC) gap = false;
    if (C == firstC || !relies) multiply(A, B, C, M, N, K);
    else
        for (volatile int i = 0; i < 20000;) i = i + 1;  // as long as is possible
    return 0;
}
