// Patterns over all of a memory: written by one launch, read and compared by the next one in the same order, so that
// what is read has left the L2 cache long before.
#include "faults.cuh"
#include "pattern.cuh"

#define UNROLL 4
#define RECORD 8  // words of an error in the log

// In each of some steps every thread writes 16 bytes, all of them beside each other.
extern "C" __global__ void write_pattern(uint4* memory, word steps, word form, word salt, word flip) {
    const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long v = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (word step = 0; step < steps; step++, v += threads) memory[v] = pattern_at(v, form, salt, flip);
}

// What a thread found. rose: bits that were 1 and should be 0, fell: the other way round.
struct Findings {
    unsigned long long wrong, first;
    word rose, fell;
};

// Takes a word; a wrong one goes into the log as long as that has room. log[0]: how many are in it, log[1] and log[2]:
// all bits that ever rose and fell. Each record after that: number of the word (low and high half), expected, found,
// pattern, multiprocessor.
__device__ __forceinline__ void take(Findings& findings, word* log, word capacity, unsigned long long at, word should,
                                     word is, word pattern) {
    if (is == should) return;
    findings.wrong++;
    if (at < findings.first) findings.first = at;
    findings.rose |= is & ~should;
    findings.fell |= should & ~is;
    if (*(volatile word*)log >= capacity) return;
    const word number = atomicAdd(&log[0], 1u);
    if (number >= capacity) return;
    word* record = log + (size_t)(number + 1) * RECORD;
    record[0] = (word)at;
    record[1] = (word)(at >> 32);
    record[2] = should;
    record[3] = is;
    record[4] = pattern;
    record[5] = multiprocessor();
}

// The same steps, which are a multiple of UNROLL.
extern "C" __global__ void compare_pattern(const uint4* memory, word steps, word form, word salt, word flip,
                                           word pattern, word* log, word capacity, unsigned long long* faults) {
    const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long compared = 0;
    Findings findings = {0, ~0ull, 0, 0};
    unsigned long long v = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (word step = 0; step < steps; step += UNROLL, v += UNROLL * threads) {
        uint4 is[UNROLL];
#pragma unroll
        for (word u = 0; u < UNROLL; u++) is[u] = load_past_l1(memory + v + u * threads);
#pragma unroll
        for (word u = 0; u < UNROLL; u++) {
            const unsigned long long at = 4 * (v + u * threads);
            const uint4 p = pattern_at(v + u * threads, form, salt, flip);
            if ((is[u].x ^ p.x) | (is[u].y ^ p.y) | (is[u].z ^ p.z) | (is[u].w ^ p.w)) {
                take(findings, log, capacity, at, p.x, is[u].x, pattern);
                take(findings, log, capacity, at + 1, p.y, is[u].y, pattern);
                take(findings, log, capacity, at + 2, p.z, is[u].z, pattern);
                take(findings, log, capacity, at + 3, p.w, is[u].w, pattern);
            }
        }
        compared += 4 * UNROLL;
    }
    if (findings.wrong) {
        atomicOr(&log[1], findings.rose);
        atomicOr(&log[2], findings.fell);
    }
    tally(faults, compared, findings.wrong, findings.first);
}
