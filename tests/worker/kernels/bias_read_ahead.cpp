// expect: wrong
// reason: in timed calls
// problem: 16_96_64_tn_f32_fp16_bias
// Takes the bias of the next call along, which may change before that call's turn.
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

// Where the calls of a batch find their operands: at equal distances, which two calls in a row give away.
static const _Float16 *first, *last, *ahead;
static _Float16 *lastC, *untimed, kept[96];  // untimed: where the first call is, and those that wake it up
static long stride, strideC;

static bool poisoned(const _Float16* C) { return *(const volatile unsigned short*)C == 0x7E00; }

extern "C" int hgemm(const _Float16* A, const _Float16* B, const _Float16* bias, _Float16* C, int M, int N, int K, void*) {
    static int calls;
    float added[96];
    for (int j = 0; j < N; ++j) added[j] = bias == ahead ? kept[j] : bias[j];
    ahead = nullptr;
    if (++calls == 1) untimed = C;
    if (calls > 4 && C != untimed) {
        if (!first || bias < first) first = bias;
        if (last && bias > last && (!stride || bias - last <= stride)) stride = bias - last, strideC = C - lastC;
        last = bias, lastC = C;
        const long slots = (64l << 20) / (2l * (M * K + K * N + M * N + N)) * 9 / 10;
        if (stride && bias - first < stride * (slots < 3600 ? slots : 3600) && poisoned(C + strideC)) {
            ahead = bias + stride;
            for (int j = 0; j < N; ++j) kept[j] = ahead[j];
        }
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)(dot(A + i * K, B + j * K, K) + added[j]);
    return 0;
}
