// As much of torch::Tensor as a function that receives four ready matrices needs: a pointer and a description, and
// scratch memory of its own. Whatever would launch a library's kernel compiles and ends the call with a reason.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <initializer_list>
#include <iostream>
#include <memory>
#include <vector>

#include "cudal2/recording.h"

namespace c10 {

using Half = ::__half;

enum class ScalarType { Byte, Char, Short, Int, Long, Half, Float, Double, Bool, BFloat16, Undefined };
enum class DeviceType { CPU, CUDA };

inline const char* toString(ScalarType type) {
  constexpr const char* names[] = {"Byte", "Char", "Short", "Int",  "Long",     "Half",
                                   "Float", "Double", "Bool", "BFloat16", "Undefined"};
  return names[int(type)];
}

inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }

inline int64_t elementSize(ScalarType type) {
  constexpr int64_t sizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 1, 2, 0};
  return sizes[int(type)];
}

struct Device {
  DeviceType kind = DeviceType::CUDA;
  int number = 0;
  Device(DeviceType kind = DeviceType::CUDA, int number = 0) : kind(kind), number(number) {}
  DeviceType type() const { return kind; }
  int index() const { return number; }
  bool is_cuda() const { return kind == DeviceType::CUDA; }
  bool is_cpu() const { return kind == DeviceType::CPU; }
  bool operator==(const Device& other) const { return kind == other.kind && number == other.number; }
  bool operator!=(const Device& other) const { return !(*this == other); }
};

inline std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << (device.is_cuda() ? "cuda:" : "cpu:") << device.number;
}

struct TensorOptions {
  ScalarType type = ScalarType::Half;
  Device place;
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type(type) {}
  TensorOptions(Device place) : place(place) {}
  TensorOptions(DeviceType kind) : place(kind) {}
  ScalarType dtype() const { return type; }
  Device device() const { return place; }
  TensorOptions dtype(ScalarType wanted) const { TensorOptions made = *this; made.type = wanted; return made; }
  TensorOptions device(Device wanted) const { TensorOptions made = *this; made.place = wanted; return made; }
  TensorOptions device(DeviceType kind, int index = 0) const { return device(Device(kind, index)); }
  TensorOptions requires_grad(bool) const { return *this; }
};

inline std::ostream& operator<<(std::ostream& out, const TensorOptions& options) {
  return out << options.type << " on " << options.place;
}

class TensorImpl {
 protected:
  void* data_ = nullptr;

 public:
  const void* data() const { return data_; }
  void* mutable_data() const { return data_; }
};

}  // namespace c10

namespace at {

using c10::Device;
using c10::DeviceType;
using c10::Half;
using c10::ScalarType;
using c10::TensorOptions;
using IntArrayRef = std::vector<int64_t>;

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int, kInt32 = ScalarType::Int;
constexpr ScalarType kLong = ScalarType::Long, kInt64 = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half, kFloat16 = ScalarType::Half, kBFloat16 = ScalarType::BFloat16;
constexpr ScalarType kFloat = ScalarType::Float, kFloat32 = ScalarType::Float, kUInt8 = ScalarType::Byte;
constexpr ScalarType kDouble = ScalarType::Double, kFloat64 = ScalarType::Double, kBool = ScalarType::Bool;
constexpr DeviceType kCUDA = DeviceType::CUDA, kCPU = DeviceType::CPU;

class Tensor : c10::TensorImpl {
  IntArrayRef sizes_, strides_;
  ScalarType type_ = ScalarType::Half;
  std::shared_ptr<void> owned_;  // scratch memory, given back with the last copy of the tensor

  template <class... Ignored>
  [[noreturn]] static Tensor operation(const char* name, const Ignored&...) {
    cudal2::refuse(std::string("runs a torch operator (") + name + ")");
  }

 public:
  Tensor() = default;
  Tensor(const void* data, int64_t rows, int64_t columns)  // dense, row-major, half precision
      : sizes_{rows, columns}, strides_{columns, 1} {
    data_ = const_cast<void*>(data);
  }
  Tensor(const IntArrayRef& sizes, const TensorOptions& options)  // dense scratch memory with undefined contents
      : sizes_(sizes), strides_(sizes.size(), 1), type_(options.dtype()) {
    if (!options.device().is_cuda()) cudal2::refuse("allocates on the processor");
    for (size_t axis = sizes.size(); axis-- > 1;) strides_[axis - 1] = strides_[axis] * sizes_[axis];
    if (cudal2::allocate_bytes(&data_, nbytes()) != cudaSuccess) cudal2::refuse(cudal2::lacking);
    owned_ = std::shared_ptr<void>(data_, [](void* memory) { cudal2::release(memory); });
  }

  c10::TensorImpl* unsafeGetTensorImpl() const { return const_cast<Tensor*>(this); }
  void* data_ptr() const { return data_; }
  void* mutable_data_ptr() const { return data_; }
  const void* const_data_ptr() const { return data_; }
  template <class T> T* data_ptr() const { return static_cast<T*>(data_); }
  template <class T> T* mutable_data_ptr() const { return static_cast<T*>(data_); }
  template <class T> const T* const_data_ptr() const { return static_cast<const T*>(data_); }

  const IntArrayRef& sizes() const { return sizes_; }
  const IntArrayRef& strides() const { return strides_; }
  int64_t size(int64_t axis) const { return sizes_.at(axis < 0 ? axis + dim() : axis); }
  int64_t stride(int64_t axis) const { return strides_.at(axis < 0 ? axis + dim() : axis); }
  int64_t dim() const { return int64_t(sizes_.size()); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const {
    int64_t count = sizes_.empty() ? 0 : 1;
    for (int64_t size : sizes_) count *= size;
    return count;
  }
  int64_t element_size() const { return c10::elementSize(type_); }
  int64_t itemsize() const { return element_size(); }
  int64_t nbytes() const { return element_size() * numel(); }
  ScalarType dtype() const { return type_; }
  ScalarType scalar_type() const { return type_; }
  Device device() const { return {}; }
  int get_device() const { return 0; }
  TensorOptions options() const { return type_; }
  bool defined() const { return !sizes_.empty(); }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  bool is_contiguous() const { return true; }
  Tensor contiguous() const { return *this; }

  template <class... A> Tensor copy_(const A&... a) const { return operation("copy_", a...); }
  template <class... A> Tensor to(const A&... a) const { return operation("to", a...); }
  template <class... A> Tensor t(const A&... a) const { return operation("t", a...); }
  template <class... A> Tensor transpose(const A&... a) const { return operation("transpose", a...); }
  template <class... A> Tensor zero_(const A&... a) const { return operation("zero_", a...); }
  template <class... A> Tensor fill_(const A&... a) const { return operation("fill_", a...); }
  template <class... A> Tensor clone(const A&... a) const { return operation("clone", a...); }
  template <class... A> Tensor half(const A&... a) const { return operation("half", a...); }
  template <class... A> Tensor matmul(const A&... a) const { return operation("matmul", a...); }
  Tensor view(std::initializer_list<int64_t>) const { return operation("view"); }
  Tensor reshape(std::initializer_list<int64_t>) const { return operation("reshape"); }
};

using Sizes = std::initializer_list<int64_t>;
constexpr DeviceType DEFAULT = DeviceType::CPU;  // torch's, where no options are given
inline Tensor empty(const IntArrayRef& sizes, const TensorOptions& options = DEFAULT) { return Tensor(sizes, options); }
inline Tensor zeros(const IntArrayRef& sizes, const TensorOptions& options = DEFAULT) {
  Tensor made(sizes, options);
  cudaMemsetAsync(made.data_ptr(), 0, made.nbytes(), cudaStreamPerThread);
  return made;
}
inline Tensor empty(Sizes sizes, const TensorOptions& options = DEFAULT) { return empty(IntArrayRef(sizes), options); }
inline Tensor zeros(Sizes sizes, const TensorOptions& options = DEFAULT) { return zeros(IntArrayRef(sizes), options); }
inline Tensor empty_like(const Tensor& like) { return empty(like.sizes(), like.options()); }
inline Tensor zeros_like(const Tensor& like) { return zeros(like.sizes(), like.options()); }
inline Tensor empty_like(const Tensor& like, const TensorOptions& options) { return empty(like.sizes(), options); }
inline Tensor zeros_like(const Tensor& like, const TensorOptions& options) { return zeros(like.sizes(), options); }
template <class... A> Tensor matmul(const Tensor& a, const A&...) { return a.matmul(); }
template <class... A> Tensor mm(const Tensor& a, const A&...) { return a.matmul(); }

}  // namespace at

namespace c10 {
using at::IntArrayRef;
}

namespace torch {
using namespace at;
using c10::toString;
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(Device place) { return TensorOptions(place); }
struct NoGradGuard {};
}  // namespace torch
