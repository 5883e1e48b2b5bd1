// at::cuda and c10::cuda: the current stream is the one that is recorded.
#pragma once
#include <cuda_runtime.h>

#include "cudal2/tensor.h"

namespace c10::cuda {

struct CUDAStream {
  cudaStream_t stream() const { return cudaStreamPerThread; }
  operator cudaStream_t() const { return stream(); }
  Device device() const { return {}; }
  int device_index() const { return 0; }
  void synchronize() const { cudal2::wait_stream(stream()); }
};

inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = 0) { return {}; }
template <class... A> CUDAStream getStreamFromPool(A...) { cudal2::refuse("takes a second stream"); }
inline int current_device() { return 0; }

struct CUDAGuard {
  template <class... A> explicit CUDAGuard(const A&...) {}
};
using OptionalCUDAGuard = CUDAGuard;
using CUDAStreamGuard = CUDAGuard;

}  // namespace c10::cuda

namespace at {
using c10::cuda::OptionalCUDAGuard;
inline bool device_of(const Tensor&) { return true; }
namespace cuda {
using namespace c10::cuda;
inline const cudaDeviceProp* getCurrentDeviceProperties() {
  static const cudaDeviceProp properties = [] {
    cudaDeviceProp found{};
    cudaGetDeviceProperties(&found, 0);
    return found;
  }();
  return &properties;
}
inline const cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}  // namespace cuda
}  // namespace at
