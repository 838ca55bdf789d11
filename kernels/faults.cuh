// The counters of a work, uint64: compared, wrong, place of the first wrong one, largest error of check.cu, then wrong ones by
// multiprocessor (`work.FAULTS` of them in all).
#pragma once
#include "intrinsics.cuh"

#define FAULTS 512
#define BY_SM 4

// Adds what each thread has compared to the counters: sums over a warp, then one atomic each. To be called once by
// every thread of whole warps (blocks are multiples of 32 threads). `first` is the place of a thread's first wrong
// one, all bits set where it has none. The answer, in the first thread of a warp, is the warp's number of wrong ones.
__device__ __forceinline__ unsigned long long tally(unsigned long long* faults, unsigned long long compared,
                                                    unsigned long long wrong, unsigned long long first) {
    compared = warp_sum(compared);
    wrong = warp_sum(wrong);
    first = warp_least(first);
    if (leads_warp()) {
        atomicAdd(&faults[0], compared);
        if (wrong) {
            atomicAdd(&faults[1], wrong);
            atomicMin(&faults[2], first);
        }
    }
    return wrong;
}

// The same for a kernel that compares what it has computed itself: the multiprocessor that runs it is to blame.
__device__ __forceinline__ void report(unsigned long long* faults, unsigned long long compared,
                                       unsigned long long wrong, unsigned long long first) {
    wrong = tally(faults, compared, wrong, first);
    if (!leads_warp() || wrong == 0) return;
    const unsigned int sm = multiprocessor();
    atomicAdd(&faults[BY_SM + (sm < FAULTS - BY_SM ? sm : FAULTS - BY_SM - 1)], wrong);
}
