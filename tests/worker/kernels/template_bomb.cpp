// expect: compile_timeout compile_error
// Instantiates templates without end.
template <int depth, class T> struct Pair {};
template <int depth, class T> struct Bomb {
    static constexpr int value = Bomb<depth - 1, Pair<0, T>>::value + Bomb<depth - 1, Pair<1, T>>::value;
};
template <class T> struct Bomb<0, T> { static constexpr int value = 0; };

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return Bomb<40, int>::value;
    return 0;
}
