// Random places in memory: reading them, and adding to them.
#include "intrinsics.cuh"

#define EACH 8

// Thread t sums table[(index[i mod period] + shift (i / period)) mod size] over i = EACH t .. EACH t + 7, modulo 2^32.
// size and period are powers of two, period a multiple of EACH; the shift keeps the places of later rounds apart.
extern "C" __global__ void gather(const word* __restrict__ table, const uint4* __restrict__ index,
                                  word* __restrict__ out, word mask, word period, word shift) {
    const word thread = blockIdx.x * blockDim.x + threadIdx.x;
    const word first = thread * EACH;
    const word at = (first & (period - 1)) / 4;
    const word moved = shift * (first / period);
    const uint4 i = index[at];
    const uint4 j = index[at + 1];
    out[thread] = table[(i.x + moved) & mask] + table[(i.y + moved) & mask] + table[(i.z + moved) & mask] +
                  table[(i.w + moved) & mask] + table[(j.x + moved) & mask] + table[(j.y + moved) & mask] +
                  table[(j.z + moved) & mask] + table[(j.w + moved) & mask];
}

extern "C" __global__ void clear(word* __restrict__ counters) {
    counters[blockIdx.x * blockDim.x + threadIdx.x] = 0;
}

// Every thread adds 1 to EACH counters, whose numbers repeat after `period` of them.
extern "C" __global__ void count(const uint4* __restrict__ index, word* __restrict__ counters, word period) {
    const word thread = blockIdx.x * blockDim.x + threadIdx.x;
    const word at = (thread * EACH & (period - 1)) / 4;
    const uint4 i = index[at];
    const uint4 j = index[at + 1];
    atomicAdd(counters + i.x, 1u);
    atomicAdd(counters + i.y, 1u);
    atomicAdd(counters + i.z, 1u);
    atomicAdd(counters + i.w, 1u);
    atomicAdd(counters + j.x, 1u);
    atomicAdd(counters + j.y, 1u);
    atomicAdd(counters + j.z, 1u);
    atomicAdd(counters + j.w, 1u);
}
