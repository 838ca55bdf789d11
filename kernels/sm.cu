// Patterns in what a multiprocessor has to itself: registers, shared memory, L1 cache, arithmetic of each lane; and the
// L2 cache as it is seen from there. Findings and times are by multiprocessor.
#include "faults.cuh"
#include "pattern.cuh"

#define THREADS 1024
#define VALUES 32  // registers of a thread that keep a word all the time: half of all
#define STARTS 64
#define STEPS 512
#define FACTOR 0x9e3779b1u
#define ROW 8

#define PART_L2 1u
#define PART_REGISTERS 2u
#define PART_SHARED 4u
#define PART_L1 8u
#define PART_FP32 16u
#define PART_INT32 32u

extern __shared__ word shared[];

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ unsigned long long cycles() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));
    return now;
}

// How many words of a vector differ.
__device__ __forceinline__ word differing(uint4 a, uint4 b) {
    return (a.x != b.x) + (a.y != b.y) + (a.z != b.z) + (a.w != b.w);
}

// One block of 1024 threads for each multiprocessor: it fills more than half of the registers, so that no two share a
// multiprocessor. starts: STARTS rows of x, y, their values after STEPS steps around a circle, an integer and its value
// after STEPS steps; threads of a warp take different rows. slab: `slab_vectors` for each block, for the L1 cache.
// far: `far_vectors` for all, which hold the pattern FORM_HASH of `salt`. slab_vectors and far_vectors are
// multiples of 1024. sms: ROW counters by multiprocessor: blocks, wrong words, lanes, parts, cycles, ns.
extern "C" __launch_bounds__(THREADS, 1) __global__ void exercise(
    const word* __restrict__ starts, float step, uint4* slab, word slab_vectors, const uint4* far, word far_vectors,
    word shared_words, word rounds, word salt, unsigned long long* sms, unsigned long long* faults) {
    const word thread = threadIdx.x, partner = THREADS - 1 - thread;
    word compared = 0, wrong = 0, parts = 0;
#define TAKE(count, words, part)  \
    {                             \
        const word bad = (count); \
        compared += (words);      \
        wrong += bad;             \
        if (bad) parts |= (part); \
    }
#pragma unroll 1
    for (word v = thread; v < far_vectors; v += THREADS)
        TAKE(differing(load_past_l1(far + v), pattern_at(v, FORM_HASH, salt, 0u)), 4, PART_L2);

    slab += (size_t)blockIdx.x * slab_vectors;
    __syncthreads();
    const unsigned long long began = cycles(), began_ns = nanoseconds();
    word values[VALUES], shift = 0;
#pragma unroll
    for (word i = 0; i < VALUES; i++) values[i] = word_at(salt, i * THREADS + thread);
    for (word round = 0; round < rounds; round++) {
        // Every second round inverts the bits of the one before.
        const word stream = salt + (round >> 1), flip = 0u - (round & 1u);
        // A word moves on by a register and is inverted. It comes from the round before, so that the compiler must keep
        // it in a register and cannot compute it again where it is compared.
        const word moved = values[0];
#pragma unroll
        for (word i = 0; i + 1 < VALUES; i++) values[i] = ~values[i + 1];
        values[VALUES - 1] = ~moved;
        shift = shift + 1 == VALUES ? 0 : shift + 1;
#pragma unroll 1
        for (word i = thread; i < shared_words; i += THREADS) shared[i] = word_at(stream, i) ^ flip;
#pragma unroll 1
        for (word v = thread; v < slab_vectors; v += THREADS) slab[v] = pattern_at(v, FORM_HASH, stream, flip);

        const word* row = starts + 6 * ((thread + 5 * (thread >> 5) + round) % STARTS);
        float x = __uint_as_float(row[0]), y = __uint_as_float(row[1]);
        word integer = row[4];
#pragma unroll 4
        for (word i = 0; i < STEPS; i++) {
            x = fmaf(step, y, x);
            y = fmaf(-step, x, y);
            integer = integer * FACTOR + i;
        }
        TAKE((__float_as_uint(x) != row[2]) + (__float_as_uint(y) != row[3]), 2, PART_FP32);
        TAKE(integer != row[5], 1, PART_INT32);

#pragma unroll
        for (word i = 0; i < VALUES; i++) {
            const word home = i + shift < VALUES ? i + shift : i + shift - VALUES;
            TAKE(values[i] != (word_at(salt, home * THREADS + thread) ^ ~flip), 1, PART_REGISTERS);
        }
        __syncthreads();
#pragma unroll 1
        for (word i = partner; i < shared_words; i += THREADS)
            TAKE(shared[i] != (word_at(stream, i) ^ flip), 1, PART_SHARED);
        // The first time from the L2 cache, the second time from L1.
#pragma unroll 1
        for (word again = 0; again < 2; again++)
#pragma unroll 1
            for (word v = partner; v < slab_vectors; v += THREADS)
                TAKE(differing(load_through_l1(slab + v), pattern_at(v, FORM_HASH, stream, flip)), 4, PART_L1);
        __syncthreads();
    }
    const unsigned long long ended = cycles(), ended_ns = nanoseconds();
    const word sm = multiprocessor();
    unsigned long long* own = sms + (size_t)ROW * (sm < FAULTS - BY_SM ? sm : FAULTS - BY_SM - 1);
    if (thread == 0) {
        atomicAdd(&own[0], 1ull);
        atomicAdd(&own[4], ended - began);
        atomicAdd(&own[5], ended_ns - began_ns);
    }
    if (wrong) {
        atomicAdd(&own[1], (unsigned long long)wrong);
        atomicOr(&own[2], 1ull << (thread & 31u));
        atomicOr(&own[3], (unsigned long long)parts);
    }
    report(faults, compared, wrong, wrong ? thread : ~0ull);
}
