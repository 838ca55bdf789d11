// The counters of a work, uint64: compared, wrong, place of the first wrong one, spare, then wrong ones by
// multiprocessor (`work.FAULTS` of them in all).
#pragma once
#include "intrinsics.cuh"

#define FAULTS 512
#define BY_SM 4

// Adds what each thread has compared to the counters: sums over a warp, then one atomic each. To be called once by
// every thread of whole warps (blocks are multiples of 32 threads). `first` is the place of a thread's first wrong
// one, all bits set where it has none.
__device__ __forceinline__ void report(unsigned long long* faults, unsigned long long compared,
                                       unsigned long long wrong, unsigned long long first) {
    compared = warp_sum(compared);
    wrong = warp_sum(wrong);
    first = warp_least(first);
    if (!leads_warp()) return;
    atomicAdd(&faults[0], compared);
    if (wrong == 0) return;
    const unsigned int sm = multiprocessor();
    atomicAdd(&faults[1], wrong);
    atomicMin(&faults[2], first);
    atomicAdd(&faults[BY_SM + (sm < FAULTS - BY_SM ? sm : FAULTS - BY_SM - 1)], wrong);
}
