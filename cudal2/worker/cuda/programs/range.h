// The range of addresses in which planner, runner and nobody else map a problem's buffers. It begins where the referee
// says, somewhere else for each recording, so that no kernel knows by its addresses that it is being judged.
#pragma once
#include <cstdint>
#include <vector>

#include "driver.h"

constexpr size_t RESERVED = (size_t)64 << 30;  // reserving all of it at once returns the address asked for
static CUdeviceptr BASE;                       // where it begins

// Addresses that a call is given: of its operands, in order, and last of the workspace. In a file (plan.py) their number
// stands before all places.
using Place = std::vector<uint64_t>;
constexpr size_t LEAST_OPERANDS = 3, MOST_OPERANDS = 8;
inline bool is_place(size_t count) { return LEAST_OPERANDS < count && count <= MOST_OPERANDS + 1; }

// The first visible device's primary context, current to this thread.
inline CUdevice open_device() {
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return device;
}

// Something of this process lies at the addresses asked for: elsewhere, or in another process, they are free.
struct Taken : std::runtime_error {
    Taken() : std::runtime_error("the driver reserved other addresses than it was asked for") {}
};

inline void reserve_range(CUdeviceptr base) {
    CHECK(cuMemAddressReserve(&BASE, RESERVED, 0, base, 0));
    if (BASE != base) throw Taken();
}

inline void allow_access(CUdevice device, size_t bytes) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(BASE, bytes, &access, 1));
}
