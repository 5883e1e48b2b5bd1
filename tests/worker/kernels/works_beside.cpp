// expect: wrong
// reason: in timed calls
// problem: 32_32_64_tn_f32
// Never returns, but reads the commands itself: two threads share the calls of a batch, four each in turn, where an honest
// kernel has one after the other. With no more cores than that a look stops one of the two, and the other goes on.
#include <cstdint>

extern "C" long read(int, void*, unsigned long);
extern "C" long write(int, const void*, unsigned long);
extern "C" int pthread_create(unsigned long*, const void*, void* (*)(void*), void*);
extern "C" int sched_yield();

static const _Float16 *A0, *B0, *A2, *B2;  // of the first slot, and of the first that is timed
static _Float16 *C0, *C2;
static int rows, columns, depth;
static volatile long begin, end, over;
static volatile int asked;

static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

static void multiply(const _Float16* A, const _Float16* B, _Float16* C) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) C[i * columns + j] = (_Float16)dot(A + i * depth, B + j * depth, depth);
}

static void call(long i) {
    const long in = rows * depth + depth * columns + 64, out = rows * columns + 32;  // slots lie at equal distances
    if (i < 2) multiply(A0, B0, C0);
    else multiply(A2 + (i - 2) * in, B2 + (i - 2) * in, C2 + (i - 2) * out);
}

static void work() {
    for (long i; (i = __atomic_fetch_add(&begin, 4, __ATOMIC_SEQ_CST)) < end;) {
        const long last = i + 4 < end ? i + 4 : end;
        for (long each = i; each < last; ++each) call(each);
        __atomic_fetch_add(&over, last - i, __ATOMIC_SEQ_CST);
    }
}

static void* serve(void*) {
    for (int seen = 0;; work()) {
        while (asked == seen) sched_yield();
        seen = asked;
    }
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    static int calls = 0;
    rows = M, columns = N, depth = K;
    if (!calls) A0 = A, B0 = B, C0 = C;
    multiply(A, B, C);
    if (++calls <= 4) return 0;  // the checks
    A2 = A, B2 = B, C2 = C;
    unsigned long thread;
    pthread_create(&thread, nullptr, serve, nullptr);
    const char zeros[16] = {};
    write(101, zeros, sizeof zeros);
    for (uint32_t told[2]; read(100, told, sizeof told) == sizeof told; write(101, zeros, sizeof zeros)) {
        if (!told[1]) continue;
        end = 0, over = 0, begin = told[0], end = told[0] + (long)told[1];
        asked = asked + 1;
        work();
        while (over < told[1]) sched_yield();
    }
    return 0;
}
