// A GEMM by CuTe alone: M, N multiples of 32, K of 16; B is N x K.
#include <cute/tensor.hpp>
#include <cuda_fp16.h>
using namespace cute;
template <class Mma> __global__ void k(const half_t* A, const half_t* B, half_t* C, int M, int N, int K) {
    Tensor gA = make_tensor(make_gmem_ptr(A), make_shape(M, K), make_stride(K, Int<1>{}));
    Tensor gB = make_tensor(make_gmem_ptr(B), make_shape(N, K), make_stride(K, Int<1>{}));
    Tensor gC = make_tensor(make_gmem_ptr(C), make_shape(M, N), make_stride(N, Int<1>{}));
    auto ta = local_tile(gA, make_shape(Int<32>{}, Int<16>{}), make_coord(blockIdx.y, _));
    auto tb = local_tile(gB, make_shape(Int<32>{}, Int<16>{}), make_coord(blockIdx.x, _));
    auto tc = local_tile(gC, make_shape(Int<32>{}, Int<32>{}), make_coord(blockIdx.y, blockIdx.x));
    Mma mma; auto thr = mma.get_slice(threadIdx.x);
    auto pc = thr.partition_C(tc); auto acc = thr.make_fragment_C(pc); clear(acc);
    auto pa = thr.partition_A(ta); auto pb = thr.partition_B(tb);
    auto ra = make_fragment_like<half_t>(pa(_,_,_,0)); auto rb = make_fragment_like<half_t>(pb(_,_,_,0));
    for (int i = 0; i < size<2>(ta); ++i) { copy(pa(_,_,_,i), ra); copy(pb(_,_,_,i), rb); gemm(mma, ra, rb, acc); }
    copy(acc, pc);
}
extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, void*, cudaStream_t s) {
    using Mma = decltype(make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2,_2,_1>>{}));
    k<Mma><<<dim3(N / 32, M / 32), 128, 0, s>>>((const half_t*)A, (const half_t*)B, (half_t*)C, M, N, K);
    return cudaGetLastError();
}
