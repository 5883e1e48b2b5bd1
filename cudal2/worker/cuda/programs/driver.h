// What the planner and the runner share: driver calls that fail by name, and the range of addresses at which both map
// a problem's buffers, so that what one records the other can replay.
#pragma once
#include <cuda.h>

#include <cstdio>
#include <stdexcept>
#include <string>

constexpr CUdeviceptr BASE = 0x300000000000;      // where the buffers begin, in every process
constexpr size_t RESERVED = (size_t)64 << 30;     // reserving all of it at once returns the address asked for

struct DriverError : std::runtime_error {
    CUresult code;
    DriverError(CUresult code, const std::string& text) : std::runtime_error(text), code(code) {}
};

inline std::string error_name(CUresult code) {
    const char* name = nullptr;
    cuGetErrorName(code, &name);
    return name ? name : "CUDA error " + std::to_string((int)code);
}

inline void check(CUresult code, const char* what) {
    if (code != CUDA_SUCCESS) throw DriverError(code, std::string(what) + ": " + error_name(code));
}
#define CHECK(call) check(call, #call)

// The first visible device's primary context, current to this thread, and the addresses reserved in it.
inline CUdevice open_device() {
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUdeviceptr base = 0;
    CHECK(cuMemAddressReserve(&base, RESERVED, 0, BASE, 0));
    if (base != BASE) throw std::runtime_error("the driver reserved other addresses than it was asked for");
    return device;
}

inline void allow_access(CUdevice device, size_t bytes) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(BASE, bytes, &access, 1));
}
