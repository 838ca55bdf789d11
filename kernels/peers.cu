// What a ring all-reduce computes on each GPU: sums of words modulo 2^32, which are exact in any order.
#include "faults.cuh"
#include "place.cuh"

typedef unsigned long long u64;

// out = own + left, `vectors` of four words each; `left` lies on the GPU before this one in the ring.
extern "C" __global__ void add(uint4* __restrict__ out, const uint4* __restrict__ own, const uint4* __restrict__ left,
                               u64 vectors) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += stride) {
        const uint4 a = own[i], b = left[i];
        out[i] = make_uint4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
}

// sums[i] must be the sum of the words i of `gpus` streams, of which number g is mix(base + g).
extern "C" __global__ void compare_sums(const unsigned int* __restrict__ sums, u64 count, unsigned int base,
                                        unsigned int gpus, u64* faults) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, first = ~0ull, compared = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        unsigned int sum = 0;
        for (unsigned int g = 0; g < gpus; g++) sum += word_at(mix(base + g), i);
        if (sums[i] != sum) {
            ++wrong;
            if (i < first) first = i;
        }
        ++compared;
    }
    tally(faults, compared, wrong, first);
}
