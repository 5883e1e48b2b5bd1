// bfloat16 on the host, for both emulations: the few names of CUDA's header that the families use.
#pragma once
#include <stdint.h>
#include <string.h>
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        uint32_t b;
        memcpy(&b, &x, 4);
        bits = (b & 0x7FFFFFFF) > 0x7F800000 ? b >> 16 | 64 : (b + 0x7FFF + (b >> 16 & 1)) >> 16;
    }
    operator float() const {
        const uint32_t b = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &b, 4);
        return x;
    }
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
// Of 16 bits that are one or the other.
inline float number_of(uint16_t bits, bool bfloat) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    __nv_bfloat16 other;
    other.bits = bits;
    return bfloat ? (float)other : (float)half;
}
