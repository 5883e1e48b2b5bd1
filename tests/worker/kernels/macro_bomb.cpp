// expect: compile_error compile_timeout rejected
// A macro that expands to billions of tokens.
#define A0 1 +
#define B A0 A0 A0 A0 A0 A0 A0 A0 A0 A0
#define C B B B B B B B B B B
#define D C C C C C C C C C C
#define E D D D D D D D D D D
#define F E E E E E E E E E E
#define G F F F F F F F F F F
#define H G G G G G G G G G G
#define I H H H H H H H H H H
#define J I I I I I I I I I I

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return J;
    return 0;
}
