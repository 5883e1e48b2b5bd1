// The driver's errors as exceptions: what planner, runner, the baselines' replay and the launcher of an export share.
#pragma once
#include <cuda.h>

#include <cstdio>
#include <stdexcept>
#include <string>

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
