// The arithmetic that C++ has no word for. No header of the CUDA toolkit is needed: a machine with only the CuPy wheel
// may have none.
#pragma once

typedef unsigned int word;    // 32 bits, or two packed 16-bit floats
typedef unsigned short half;  // the bits of an IEEE 754 binary16

__device__ __forceinline__ double fused_fp64(double a, double x, double c) { return fma(a, x, c); }

__device__ __forceinline__ float fused_fp32(float a, float x, float c) { return fmaf(a, x, c); }

// Two at once: the only form in which 16-bit floats reach their full rate.
__device__ __forceinline__ word fused_fp16(word a, word x, word c) {
    word d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(x), "r"(c));
    return d;
}

__device__ __forceinline__ word fused_int32(word a, word x, word c) { return a * x + c; }

__device__ __forceinline__ float from_fp16(half bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ half to_fp16(float value) {
    half bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// 16 or 4 bytes through the L2 cache only: the L1 cache neither answers nor keeps them.
__device__ __forceinline__ uint4 load_past_l1(const uint4* address) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

// 16 bytes through the L1 cache, which may keep them: for memory that no other multiprocessor writes meanwhile.
__device__ __forceinline__ uint4 load_through_l1(const uint4* address) {
    uint4 v;
    asm volatile("ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ word load_past_l1(const word* address) {
    word v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(address));
    return v;
}

// Number of the multiprocessor that runs this thread.
__device__ __forceinline__ unsigned int multiprocessor() {
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

// The sum over the 32 threads of a warp, right in its first one; all of them call it together.
__device__ __forceinline__ unsigned long long warp_sum(unsigned long long value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

// The least of the 32 values of a warp, in the same way.
__device__ __forceinline__ unsigned long long warp_least(unsigned long long value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const unsigned long long other = __shfl_down_sync(0xffffffffu, value, offset);
        value = other < value ? other : value;
    }
    return value;
}

// Whether this thread is the first of its warp.
__device__ __forceinline__ bool leads_warp() {
    return ((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u) == 0u;
}
