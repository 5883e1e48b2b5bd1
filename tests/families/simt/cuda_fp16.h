// Half precision on the host: the few names of CUDA's header that the families use.
#pragma once
typedef _Float16 __half;
typedef __half half;
struct __half2 {
    __half x, y;
};
typedef __half2 half2;
inline __half2 __floats2half2_rn(float x, float y) { return {(__half)x, (__half)y}; }
inline __half __float2half_rn(float x) { return (__half)x; }
inline __half __float2half(float x) { return (__half)x; }
inline float __half2float(__half x) { return (float)x; }
