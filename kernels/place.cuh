// Data that know their place: the same functions as `inputs.mix`, `word` and `scale`.
#pragma once

// A bijection of 32 bits: the finaliser of MurmurHash3 (Appleby, public domain). Every bit of `x` moves about half of
// the result's.
__device__ __forceinline__ unsigned int mix(unsigned int x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// Word i of a stream. Two whose places differ in one bit differ, and so do any two of 2^32 neighbours that begin at a
// multiple of 2^32.
__device__ __forceinline__ unsigned int word_at(unsigned int stream, unsigned long long i) {
    return mix((unsigned int)i + stream + 0x9e3779b9u * (unsigned int)(i >> 32));
}

// Which of eight powers of two a row is scaled by: bits 0 and 1 are the exponent, bit 2 the sign.
__device__ __forceinline__ unsigned int scale_code(unsigned long long row) {
    return mix((unsigned int)row + 0x85ebca6bu) >> 29;
}

// +-1, +-2, +-4 or +-8.
__device__ __forceinline__ int scale_of(unsigned long long row) {
    const unsigned int code = scale_code(row);
    const int size = 1 << (code & 3u);
    return code & 4u ? -size : size;
}
