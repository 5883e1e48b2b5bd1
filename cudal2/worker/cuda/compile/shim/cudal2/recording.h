// What the CUDA runtime means to a published kernel whose call is recorded and replayed by someone else.
//
// A recorded call may only enqueue. Published kernels also keep scratch memory of their own and wait for the device:
//   cudaMalloc, torch::empty
//                       are served from the contract's workspace, whose addresses exist again at replay; where it is too
//                       small, cudaMalloc fails as it does on a full GPU;
//   cudaFree            gives it back;
//   synchronisation     does nothing while recording: the recorded nodes are ordered anyway;
//   a stream of their own
//                       is the one that is recorded: issued in order, the work of several streams is right on one;
//   timing with events, copies to the host
//                       work in the call that is made before the recorded ones, where a kernel chooses among several
//                       by timing them; they cannot be replayed: a recorded call ends with a reason.
// Included ahead of everything else, so that CUTLASS's own allocations take the same path. CONTRACT_… are defined by the
// compiler's command line (contract.py).
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace cudal2 {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

static std::string reason;   // of the call's first refusal, which a source may catch for itself
static std::string lacking;  // what the last allocation asked for in vain; empty once another was served

[[noreturn]] static void refuse(const std::string& what) {
  if (reason.empty()) reason = what;
  throw Refused(what);
}

inline bool capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(cudaStreamPerThread, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

inline void refuse_in_capture(const char* what) {
  if (capturing()) refuse(what);
}

constexpr size_t SEMAPHORES = CONTRACT_SEMAPHORES;  // bytes at the head of the workspace that have to be zero in the end
constexpr size_t ALIGNMENT = 1024;

// Bytes of workspace to ask for: the sizes wanted are known only to the kernel's host code. Eight fp32 copies of C
// cover the split-K kernels; beyond the cap the allocation is refused.
constexpr size_t workspace_bytes(int m, int n) {
  size_t wanted = SEMAPHORES + (size_t(128) << 20) + 32 * size_t(m) * size_t(n);
  return std::min(wanted, size_t(CONTRACT_WORKSPACE_LIMIT));
}

struct Block {
  std::uintptr_t begin, end;
};

static std::vector<Block> live;  // outlives the call: kernels keep their first allocation in a static
static Block workspace{0, 0};

static cudaError_t allocate_bytes(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  std::uintptr_t begin = workspace.begin + SEMAPHORES;
  for (const Block& block : live)
    if (block.begin >= workspace.begin && block.end <= workspace.end) begin = std::max(begin, block.end);
  begin = (begin + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (workspace.begin == 0 || begin > workspace.end || bytes > workspace.end - begin) {
    lacking = "allocates " + std::to_string(bytes) + " bytes, more than the workspace has left";
    return cudaErrorMemoryAllocation;
  }
  lacking.clear();
  live.push_back({begin, begin + bytes});
  *pointer = reinterpret_cast<void*>(begin);
  return cudaSuccess;
}

template <class T, class... Stream>
cudaError_t allocate(T** pointer, size_t bytes, Stream...) {
  void* found = nullptr;
  cudaError_t status = allocate_bytes(&found, bytes);
  *pointer = static_cast<T*>(found);
  return status;
}

template <class... Stream>
cudaError_t release(const void* pointer, Stream...) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  live.erase(std::remove_if(live.begin(), live.end(), [&](const Block& b) { return b.begin == begin; }), live.end());
  return cudaSuccess;
}

inline cudaError_t wait_device() { return capturing() ? cudaSuccess : cudaDeviceSynchronize(); }
inline cudaError_t wait_stream(cudaStream_t stream) {
  return capturing() ? cudaSuccess : cudaStreamSynchronize(stream);
}

inline cudaError_t wait_event(cudaEvent_t event) {
  refuse_in_capture("waits for an event");
  return cudaEventSynchronize(event);
}

inline cudaError_t elapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  refuse_in_capture("times itself with events");
  return cudaEventElapsedTime(milliseconds, begin, end);
}

inline cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  refuse_in_capture("copies with cudaMemcpy");
  return cudaMemcpy(to, from, bytes, kind);
}

template <class... Arguments>
cudaError_t own_stream(cudaStream_t* stream, Arguments...) {
  *stream = cudaStreamPerThread;
  return cudaSuccess;
}
inline cudaError_t end_stream(cudaStream_t) { return cudaSuccess; }

}  // namespace cudal2

// Function-like, and without a leading `::`, so that `&cudaMalloc` and `::cudaMalloc(...)` in a source still compile.
// The runtime's per-thread variants are macros of the same names and come first.
#undef cudaMallocAsync
#undef cudaFreeAsync
#undef cudaStreamSynchronize
#undef cudaMemcpy
#define cudaMalloc(...) cudal2::allocate(__VA_ARGS__)
#define cudaMallocAsync(...) cudal2::allocate(__VA_ARGS__)
#define cudaFree(...) cudal2::release(__VA_ARGS__)
#define cudaFreeAsync(...) cudal2::release(__VA_ARGS__)
#define cudaDeviceSynchronize() cudal2::wait_device()
#define cudaStreamSynchronize(...) cudal2::wait_stream(__VA_ARGS__)
#define cudaEventSynchronize(...) cudal2::wait_event(__VA_ARGS__)
#define cudaEventElapsedTime(...) cudal2::elapsed(__VA_ARGS__)
#define cudaMemcpy(...) cudal2::copy(__VA_ARGS__)
#define cudaStreamCreate(...) cudal2::own_stream(__VA_ARGS__)
#define cudaStreamCreateWithFlags(...) cudal2::own_stream(__VA_ARGS__)
#define cudaStreamCreateWithPriority(...) cudal2::own_stream(__VA_ARGS__)
#define cudaStreamDestroy(...) cudal2::end_stream(__VA_ARGS__)
