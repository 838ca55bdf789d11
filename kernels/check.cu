// Compares results with what they must be: numbers with a reference, words with their place, the slots of a ring with
// one another. All findings go to the counters of faults.cuh.
#include "faults.cuh"
#include "place.cuh"

typedef unsigned long long u64;

// ELEMENT says what an element is: 0 fp64, 1 fp32, 2 fp16, 3 bf16, 4 uint32. The small formats are decoded from their
// bits, so that no header of a toolkit is needed. Everything is compared in fp64, which holds each of them exactly.
#ifndef ELEMENT
#define ELEMENT 1
#endif

__device__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

__device__ double not_a_number() { return __longlong_as_double(0x7ff8000000000000ll); }

__device__ double power_of_two(int exponent) { return ldexp(1.0, exponent); }

// An IEEE-like format of `fraction` bits under `exponent` bits; fp16 is (10, 5), bf16 is (7, 8).
__device__ double decoded(unsigned bits, int fraction, int exponent) {
    const int bias = (1 << (exponent - 1)) - 1;
    const unsigned low = bits & ((1u << fraction) - 1u);
    const int e = (int)((bits >> fraction) & ((1u << exponent) - 1u));
    const double sign = ((bits >> (fraction + exponent)) & 1u) ? -1.0 : 1.0;
    if (e == (1 << exponent) - 1) return low ? not_a_number() : sign * infinity();
    if (e == 0) return sign * (double)low * power_of_two(1 - bias - fraction);
    return sign * (double)(low + (1u << fraction)) * power_of_two(e - bias - fraction);
}

__device__ double element(const void* result, u64 i) {
#if ELEMENT == 0
    return ((const double*)result)[i];
#elif ELEMENT == 1
    return (double)((const float*)result)[i];
#elif ELEMENT == 2
    return decoded(((const unsigned short*)result)[i], 10, 5);
#elif ELEMENT == 3
    return decoded(((const unsigned short*)result)[i], 7, 8);
#else
    return (double)((const unsigned*)result)[i];
#endif
}

// Error in tolerances. What is not a number, or infinite, is infinitely wrong, unless just that is expected.
__device__ double error_in_tolerances(double is, double should, double tolerance) {
    if (is == should) return 0.0;
    if (is != is && should != should) return 0.0;
    const double error = fabs(is - should);
    if (!(error < infinity()) || !(tolerance > 0.0)) return infinity();
    return error / tolerance;
}

// Row r, column c of the result must lie within tolerance[(r % p) * q + c % q] of values[the same] + rise * (r / p),
// both times the scales of r and c where `scaled`. faults[3] takes the bits of the largest
// error in tolerances, as fp64 (never negative, so that bits order as values do).
extern "C" __global__ void compare(const void* result, const double* __restrict__ values,
                                   const double* __restrict__ tolerance, u64 count, u64 columns, unsigned int p,
                                   unsigned int q, unsigned int scaled, double rise, u64* faults) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, first = ~0ull, compared = 0;
    double worst = 0.0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const u64 row = i / columns, column = i - row * columns;
        const u64 at = (row % p) * q + column % q;
        const double scale = scaled ? (double)scale_of(row) * scale_of(column) : 1.0;
        const double should = scale * (values[at] + rise * (double)(row / p));
        const double off = error_in_tolerances(element(result, i), should, fabs(scale) * tolerance[at]);
        if (!(off <= 1.0)) {
            ++wrong;
            if (i < first) first = i;
        }
        if (off > worst) worst = off;
        ++compared;
    }
    const u64 largest = ~warp_least(~(u64)__double_as_longlong(worst));
    if (leads_warp() && largest) atomicMax(&faults[3], largest);
    tally(faults, compared, wrong, first);
}

// words[i] must be word((first + i) % count) of the stream + plus_factor * word i of the stream `plus`, modulo 2^32.
extern "C" __global__ void compare_words(const unsigned int* words, u64 count, unsigned int stream, u64 first,
                                         unsigned int plus, unsigned int plus_factor, u64* faults) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, earliest = ~0ull, compared = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        if (words[i] != word_at(stream, (first + i) % count) + plus_factor * word_at(plus, i)) {
            ++wrong;
            if (i < earliest) earliest = i;
        }
        ++compared;
    }
    tally(faults, compared, wrong, earliest);
}

__device__ __forceinline__ unsigned int most_of(unsigned int a, unsigned int b, unsigned int c) {
    return (a & b) | (b & c) | (a & c);
}

// Slots of a ring, each of `vectors` 16-byte vectors: those whose numbers differ by a multiple of `period` must be equal
// bit for bit. Each is compared with what most of the first three have, bit by bit, so that one that is wrong counts
// once. A word of which all bits are set is no number, and wrong: it was not written. Afterwards one vector in MARKED of
// each slot but the last is made such, so that slots that are not written for whole laps are found, and so is a tile of
// them. Counts 32-bit words; a place is that of a word in the ring.
#define MARKED 61u  // odd and no size of a tile: marks lie in other columns in each row

extern "C" __global__ void alike(uint4* ring, u64 vectors, unsigned int period, unsigned int slots, u64* faults) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, earliest = ~0ull, compared = 0;
    for (u64 v = (u64)blockIdx.x * blockDim.x + threadIdx.x; v < vectors; v += stride) {
        for (unsigned int begin = 0; begin < period && begin < slots; begin++) {
            const uint4 a = ring[begin * vectors + v];
            const uint4 b = begin + period < slots ? ring[(begin + period) * vectors + v] : a;
            const uint4 c = begin + 2 * period < slots ? ring[(begin + 2 * period) * vectors + v] : b;
            const unsigned int x = most_of(a.x, b.x, c.x), y = most_of(a.y, b.y, c.y);
            const unsigned int z = most_of(a.z, b.z, c.z), w = most_of(a.w, b.w, c.w);
#pragma unroll 4
            for (unsigned int slot = begin; slot < slots; slot += period) {
                const u64 at = slot * vectors + v;
                const uint4 is = ring[at];
                const unsigned int words[4] = {is.x, is.y, is.z, is.w}, most[4] = {x, y, z, w};
                compared += 4;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (words[i] != most[i] || words[i] == ~0u) {
                        ++wrong;
                        if (4 * at + i < earliest) earliest = 4 * at + i;
                    }
            }
        }
        if ((unsigned int)v % MARKED == 0)
            for (unsigned int slot = 0; slot + 1 < slots; slot++)
                ring[slot * vectors + v] = make_uint4(~0u, ~0u, ~0u, ~0u);
    }
    tally(faults, compared, wrong, earliest);
}
