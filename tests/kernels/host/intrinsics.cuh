// The intrinsics of the kernels on the host: the same arithmetic, and it counts the multiply-adds.
#pragma once

typedef unsigned int word;
typedef unsigned short half;

inline double fused_fp64(double a, double x, double c) {
    multiply_adds++;
    return std::fma(a, x, c);
}

inline float fused_fp32(float a, float x, float c) {
    multiply_adds++;
    return std::fmaf(a, x, c);
}

inline word fused_int32(word a, word x, word c) {
    multiply_adds++;
    return a * x + c;
}

// What the bits of a 16-bit float of `exponent` and `fraction` bits mean.
inline double small_to_double(half bits, int exponent, int fraction) {
    const int bias = (1 << (exponent - 1)) - 1;
    const int e = (bits >> fraction) & ((1 << exponent) - 1);
    const int m = bits & ((1 << fraction) - 1);
    double value = e ? std::ldexp(m + (1 << fraction), e - bias - fraction) : std::ldexp(m, 1 - bias - fraction);
    if (e == (1 << exponent) - 1) value = m ? NAN : INFINITY;
    return bits >> (exponent + fraction) ? -value : value;
}

// To nearest, ties to even, from a long double that holds the exact value.
inline half small_from(long double value, int exponent, int fraction) {
    const int bias = (1 << (exponent - 1)) - 1;
    const unsigned int sign = std::signbit(value) ? 1u << (exponent + fraction) : 0u;
    if (std::isnan(value)) return half(sign | ((1u << (exponent + fraction)) - 1));
    const long double size = std::fabs(value);
    if (size == 0) return half(sign);
    int e = std::isinf(size) ? bias + 1 : std::ilogb(size);
    if (e < 1 - bias) e = 1 - bias;
    if (e > bias) return half(sign | (((1u << exponent) - 1) << fraction));
    const long double scaled = std::nearbyint(std::scalbn(size, fraction - e));
    unsigned int m = (unsigned int)scaled;
    unsigned int code = m < (1u << fraction) ? m : ((unsigned int)(e + bias) << fraction) + (m - (1u << fraction));
    return half(sign | code);
}

inline word fused_small(word a, word x, word c, int exponent, int fraction) {
    word packed = 0;
    for (int lane = 0; lane < 2; lane++) {
        const int at = 16 * lane;
        // The product has at most 22 bits; with the addend it fits the 64 of a long double.
        const long double exact = (long double)small_to_double(half(a >> at), exponent, fraction) *
                                      small_to_double(half(x >> at), exponent, fraction) +
                                  small_to_double(half(c >> at), exponent, fraction);
        packed |= (word)small_from(exact, exponent, fraction) << at;
        multiply_adds++;
    }
    return packed;
}

inline word fused_fp16(word a, word x, word c) { return fused_small(a, x, c, 5, 10); }

inline word fused_bf16(word a, word x, word c) { return fused_small(a, x, c, 8, 7); }

inline float from_fp16(half bits) { return (float)small_to_double(bits, 5, 10); }

inline half to_fp16(float value) { return small_from(value, 5, 10); }

inline uint4 load_past_l1(const uint4* address) { return *address; }

inline word load_past_l1(const word* address) { return *address; }

inline int __popc(unsigned int bits) { return __builtin_popcount(bits); }

inline int __ffs(int bits) { return __builtin_ffs(bits); }

// On the host every thread is a warp of its own.
inline unsigned int multiprocessor() { return 0; }

inline unsigned long long warp_sum(unsigned long long value) { return value; }

inline unsigned long long warp_least(unsigned long long value) { return value; }

inline bool leads_warp() { return true; }
