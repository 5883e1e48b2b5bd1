// From the kernel contract's pointers to four tensors and back to a status.
#pragma once
#include <cstdio>
#include <exception>

#include "cudal2/tensor.h"

namespace cudal2 {

// `b` holds the matrix as the problem's layout stores it. The published convention passes it twice, both times
// described as K×N: row-major, and column-major in the same shape. The one that does not exist is a null pointer.
template <class Entry>
cudaError_t call(Entry entry, const void* a, const void* b, void* c, int m, int n, int k, bool transposed,
                 void* scratch) {
  const auto base = reinterpret_cast<std::uintptr_t>(scratch);
  workspace = {base, base ? base + workspace_bytes(m, n) : 0};
  reason.clear();
  lacking.clear();
  std::string thrown = "something that is no std::exception";
  try {
    entry(at::Tensor(a, m, k), at::Tensor(transposed ? nullptr : b, k, n), at::Tensor(transposed ? b : nullptr, k, n),
          at::Tensor(c, m, n));
    if (lacking.empty()) return cudaGetLastError();  // else it went on without memory that it wanted
  } catch (const std::exception& error) {
    thrown = error.what();
  } catch (...) {
  }
  if (reason.empty()) reason = lacking;
  if (reason.empty()) {
    std::fprintf(stderr, "the kernel threw: %s\n", thrown.c_str());
    return cudaErrorUnknown;
  }
  std::fprintf(stderr, "cannot be recorded: the kernel %s\n", reason.c_str());
  return cudaErrorNotSupported;
}

}  // namespace cudal2
