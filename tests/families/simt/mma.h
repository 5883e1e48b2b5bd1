// nvcuda::wmma in which every lane holds the whole fragment.
#pragma once
#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment { T x[32][32]; };

template <class F, class T> void fill_fragment(F& f, T value) {
    for (auto& row : f.x)
        for (auto& x : row) x = value;
}
inline void aligned(const void* from, unsigned ld, unsigned multiple) {
    if ((uintptr_t)from % 32 || ld % multiple) simt::fail("wmma: alignment");
}
template <int M, int N, int K, class T, class L>
void load_matrix_sync(fragment<matrix_a, M, N, K, T, L>& f, const T* from, unsigned ld) {
    static_assert(__is_same(L, row_major));
    aligned(from, ld, 8);
    for (int i = 0; i < M; ++i)
        for (int k = 0; k < K; ++k) f.x[i][k] = from[i * ld + k];
}
template <int M, int N, int K, class T, class L>
void load_matrix_sync(fragment<matrix_b, M, N, K, T, L>& f, const T* from, unsigned ld) {
    aligned(from, ld, 8);
    for (int k = 0; k < K; ++k)
        for (int j = 0; j < N; ++j) f.x[k][j] = __is_same(L, row_major) ? from[k * ld + j] : from[j * ld + k];
}
template <int M, int N, int K, class T>
void store_matrix_sync(T* to, const fragment<accumulator, M, N, K, T>& f, unsigned ld, layout_t layout) {
    aligned(to, ld, 16 / sizeof(T));
    if (layout != mem_row_major) simt::fail("wmma: only row-major stores here");
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) to[i * ld + j] = f.x[i][j];
}
template <int M, int N, int K, class T, class E, class LA, class LB>
void mma_sync(fragment<accumulator, M, N, K, T>& d, const fragment<matrix_a, M, N, K, E, LA>& a,
              const fragment<matrix_b, M, N, K, E, LB>& b, const fragment<accumulator, M, N, K, T>& c) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = (float)c.x[i][j];
            for (int k = 0; k < K; ++k) sum += (float)a.x[i][k] * (float)b.x[k][j];
            d.x[i][j] = (T)sum;
        }
}

}  // namespace nvcuda::wmma
