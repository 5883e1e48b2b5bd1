// The macros of torch's headers: checks throw, bindings compile and do nothing.
#pragma once
#include <cuda_runtime.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace cudal2 {

template <class... Parts>
[[noreturn]] void fail(const char* condition, const Parts&... parts) {
  std::ostringstream text;
  text << "check failed: " << condition << ' ';
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

inline void cuda_check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(call, cudaGetErrorString(status));
}

// Stands in for pybind11's and torch::Library's module object.
struct Module {
  template <class... A> Module& def(const A&...) { return *this; }
  template <class... A> Module& impl(const A&...) { return *this; }
  template <class T> T& attr(T&& value) { return value; }
  const char* doc() const { return ""; }
};

}  // namespace cudal2

namespace pybind11 {
using module = ::cudal2::Module;
using module_ = ::cudal2::Module;
struct arg {
  explicit arg(const char*) {}
  template <class T> arg& operator=(const T&) { return *this; }
};
}  // namespace pybind11
namespace py = pybind11;
namespace torch {
using Library = ::cudal2::Module;
}

#define CUDAL2_CHECK(condition, ...) \
  do { if (!(condition)) ::cudal2::fail(#condition, ##__VA_ARGS__); } while (0)
#define TORCH_CHECK(...) CUDAL2_CHECK(__VA_ARGS__)
#define TORCH_CHECK_EQ(a, b, ...) CUDAL2_CHECK((a) == (b), ##__VA_ARGS__)
#define TORCH_CHECK_NE(a, b, ...) CUDAL2_CHECK((a) != (b), ##__VA_ARGS__)
#define TORCH_CHECK_LE(a, b, ...) CUDAL2_CHECK((a) <= (b), ##__VA_ARGS__)
#define TORCH_CHECK_LT(a, b, ...) CUDAL2_CHECK((a) < (b), ##__VA_ARGS__)
#define TORCH_CHECK_GE(a, b, ...) CUDAL2_CHECK((a) >= (b), ##__VA_ARGS__)
#define TORCH_CHECK_GT(a, b, ...) CUDAL2_CHECK((a) > (b), ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(...) CUDAL2_CHECK(__VA_ARGS__)
#define TORCH_CHECK_TYPE(...) CUDAL2_CHECK(__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(...) CUDAL2_CHECK(__VA_ARGS__)
#define AT_ASSERT(...) CUDAL2_CHECK(__VA_ARGS__)
#define AT_ASSERTM(...) CUDAL2_CHECK(__VA_ARGS__)
#define AT_ERROR(...) ::cudal2::fail("", ##__VA_ARGS__)
#define TORCH_WARN(...) ((void)0)
#define C10_CUDA_CHECK(call) ::cudal2::cuda_check((call), #call)
#define AT_CUDA_CHECK(call) ::cudal2::cuda_check((call), #call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ::cudal2::cuda_check(cudaGetLastError(), "kernel launch")

#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME cudal2_extension
#endif
#define CUDAL2_JOIN_(a, b) a##b
#define CUDAL2_JOIN(a, b) CUDAL2_JOIN_(a, b)
#define CUDAL2_BINDINGS(variable) \
  [[maybe_unused]] static void CUDAL2_JOIN(cudal2_bindings_, __COUNTER__)([[maybe_unused]] ::cudal2::Module & variable)
#define PYBIND11_MODULE(name, variable) CUDAL2_BINDINGS(variable)
#define TORCH_LIBRARY(name, variable) CUDAL2_BINDINGS(variable)
#define TORCH_LIBRARY_FRAGMENT(name, variable) CUDAL2_BINDINGS(variable)
#define TORCH_LIBRARY_IMPL(name, key, variable) CUDAL2_BINDINGS(variable)
