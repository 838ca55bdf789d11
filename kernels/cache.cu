// The L2 cache: how fast it is read, and how long one load takes.
#include "intrinsics.cuh"

#define UNROLL 4

// Reads the whole footprint again and again: in step i the grid reads as many 16-byte vectors as it has threads, from
// a start that moves on by that number, and by `turn` more after each pass, so that no thread meets its vectors in the
// order of the last pass. vectors: of the footprint, a multiple of the threads. Adds up all words it reads, modulo 2^32.
extern "C" __global__ void read_again(const uint4* __restrict__ from, word* __restrict__ out, word vectors,
                                      word steps_per_pass, word passes, word turn) {
    const word threads = gridDim.x * blockDim.x;
    const word thread = blockIdx.x * blockDim.x + threadIdx.x;
    word at = thread;
    word sums[UNROLL] = {0, 0, 0, 0};
    for (word pass = 0; pass < passes; pass += UNROLL) {
        for (word step = 0; step < steps_per_pass; step++) {
            uint4 v[UNROLL];
#pragma unroll
            for (word u = 0; u < UNROLL; u++) {
                word place = at + u * turn;
                v[u] = load_past_l1(from + (place < vectors ? place : place - vectors));
            }
#pragma unroll
            for (word u = 0; u < UNROLL; u++) sums[u] += v[u].x + v[u].y + v[u].z + v[u].w;
            at += threads;
            if (at >= vectors) at -= vectors;
        }
        at += turn;
        if (at >= vectors) at -= vectors;
    }
    out[thread] = sums[0] + sums[1] + sums[2] + sums[3];
}

// One thread follows a chain of lines that goes through all of them in random order: each load needs the one before.
// A line of 32 words begins with the next line's number and its own place in the chain. The walk goes on where the
// last one ended (`at`), so that it does not find its lines in a cache that is smaller than the chain.
// out: by how many places it got on, modulo the number of lines.
extern "C" __global__ void chase(const word* __restrict__ lines, word* at, word* out, word count, word hops) {
    word line = *at;
    const word began = lines[(size_t)line * 32 + 1];
#pragma unroll 8
    for (word hop = 0; hop < hops; hop++) line = lines[(size_t)line * 32];
    const word ended = lines[(size_t)line * 32 + 1];
    *at = line;
    *out = (ended + count - began) % count;
}
