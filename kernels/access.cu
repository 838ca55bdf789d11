// Loads and additions that do not stream: the L2 cache read again and again, one load after another, random places.
// What is loaded is compared with what its place holds, in the time in which the next loads come.
#include "faults.cuh"
#include "place.cuh"

#define UNROLL 4
#define EACH 8
#define NONE 0xffffffffu
#define RISE 0x9e3779b1u  // from one word of read_again to the next

// Whether a vector of four words differs from those that begin with `right`.
__device__ __forceinline__ bool differs(uint4 v, word right) {
    return (v.x - right) | (v.y - right - RISE) | (v.z - right - 2 * RISE) | (v.w - right - 3 * RISE);
}

// Reads the whole footprint again and again: in step i the grid reads as many 16-byte vectors as it has threads, from
// a start that moves on by that number, and by `turn` more after each pass, so that no thread meets its vectors in the
// order of the last pass. vectors: of the footprint, a multiple of the threads, more than 3 * turn. Word i of the
// footprint is start + RISE * i, modulo 2^32.
extern "C" __global__ void read_again(const uint4* __restrict__ from, word vectors, word steps_per_pass, word passes,
                                      word turn, word start, unsigned long long* faults) {
    const word threads = gridDim.x * blockDim.x;
    word at = blockIdx.x * blockDim.x + threadIdx.x;
    word wrong = 0, first = NONE;
    for (word pass = 0; pass < passes; pass += UNROLL) {
        for (word step = 0; step < steps_per_pass; step++) {
            uint4 v[UNROLL];
            word place[UNROLL];
            bool off = false;
#pragma unroll
            for (word u = 0; u < UNROLL; u++) {
                place[u] = at + u * turn;
                if (place[u] >= vectors) place[u] -= vectors;
                v[u] = load_past_l1(from + place[u]);
            }
#pragma unroll
            for (word u = 0; u < UNROLL; u++) off |= differs(v[u], start + 4 * RISE * place[u]);
            if (off) {
#pragma unroll
                for (word u = 0; u < UNROLL; u++) {
                    if (!differs(v[u], start + 4 * RISE * place[u])) continue;
                    wrong++;
                    first = place[u] < first ? place[u] : first;
                }
            }
            at += threads;
            if (at >= vectors) at -= vectors;
        }
        at += turn;
        if (at >= vectors) at -= vectors;
    }
    report(faults, (unsigned long long)passes * steps_per_pass, wrong, wrong ? first : ~0ull);
}

// Line k of an order in which 2^bits lines come once each: multiplications by odd numbers, and shifts, that can be
// undone.
__device__ __forceinline__ word ordered(word k, word bits) {
    const word mask = (1u << bits) - 1u, half_of = (bits + 1u) / 2u;
    k &= mask;
    k = ((k ^ (k >> half_of)) * 0x85ebca6bu) & mask;
    k = ((k ^ (k >> half_of)) * 0xc2b2ae35u) & mask;
    return k ^ (k >> half_of);
}

// The first thread goes through 2^bits lines of 32 words in the order above, `hops` of them (a multiple of UNROLL), from
// where the last launch ended (`at`), so that it does not find its lines in a cache that is smaller than all of them;
// after each round it reads another word of the lines. Where to go next is known only when a load has come, though it
// does not change it: the difference between what was loaded and what must be there is part of the place.
extern "C" __global__ void chase(const word* __restrict__ lines, word* at, word bits, word hops, word stream,
                                 unsigned long long* faults) {
    word wrong = 0, first = NONE;
    if (threadIdx.x == 0) {
        const word inside = (32u << bits) - 1u, began = *at, column = (began >> bits) & 31u;
        word place = ordered(began, bits) * 32u + column;
        for (word hop = began; hop - began < hops; hop += UNROLL) {
#pragma unroll
            for (word u = 0; u < UNROLL; u++) {
                const word here = place;
                const word loaded = load_past_l1(lines + here);
                const word right = word_at(stream, here);
                const word next = ordered(hop + u + 1, bits) * 32u + column;
                place = (loaded & inside) ^ ((next ^ right) & inside);
                if (loaded == right) continue;
                wrong++;
                first = here < first ? here : first;
            }
        }
        *at = began + hops;
    }
    report(faults, threadIdx.x == 0 ? hops : 0, wrong, wrong ? first : ~0ull);
}

// Each thread loads `rounds` times EACH words from random places of a table of mask + 1 words, a power of two.
extern "C" __global__ void gather(const word* __restrict__ table, word mask, word rounds, word stream,
                                  unsigned long long* faults) {
    const word threads = gridDim.x * blockDim.x;
    word i = blockIdx.x * blockDim.x + threadIdx.x;
    word wrong = 0, first = NONE;
    for (word round = 0; round < rounds; round++) {
        word place[EACH], loaded[EACH];
#pragma unroll
        for (word u = 0; u < EACH; u++) place[u] = mix(i + u * threads) & mask;
#pragma unroll
        for (word u = 0; u < EACH; u++) loaded[u] = table[place[u]];
#pragma unroll
        for (word u = 0; u < EACH; u++) {
            if (loaded[u] == word_at(stream, place[u])) continue;
            wrong++;
            first = place[u] < first ? place[u] : first;
        }
        i += EACH * threads;
    }
    report(faults, (unsigned long long)rounds * EACH, wrong, wrong ? first : ~0ull);
}

// Every thread adds 1 to EACH random counters of mask + 1, a power of two; which, repeats after `period` additions, a
// power of two.
extern "C" __global__ void count(word* __restrict__ counters, word mask, word period, word stream) {
    const word first = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
#pragma unroll
    for (word u = 0; u < EACH; u++) atomicAdd(counters + (word_at(stream, (first + u) & (period - 1u)) & mask), 1u);
}
