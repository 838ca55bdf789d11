// The generated kernel: multiply-adds of several precisions, and loads from device memory, the L2 cache and shared
// memory, in a proportion that the launch defines. See stress.py for what each definition is a knob of.
//
// FP64, FP32, FP16, BF16, INT32: pairs of chains. ROUNDS: of them in a step. UNROLL: of these, 0 for the compiler.
// FAR, NEAR, SHARED, STORES: vectors of WIDTH words in a step. STRIDE, BANK: vectors between neighbouring threads.
// SLAB: vectors of shared memory. CACHE: the hint of far loads. MASK: bits of a word that differ. SLEEP: ns in a step.
#include "faults.cuh"
#include "place.cuh"

#define PERIOD 256
#define RISE 0x9e3779b1u

__device__ __forceinline__ word fused_bf16(word a, word x, word c) {
    word d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(x), "r"(c));
    return d;
}

#if WIDTH == 4
#define LOAD(hint, v, from)                                    \
    asm volatile("ld.global" hint ".v4.u32 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])   \
                 : "l"(from))
typedef uint4 vector;
#elif WIDTH == 2
#define LOAD(hint, v, from) \
    asm volatile("ld.global" hint ".v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(from))
typedef uint2 vector;
#else
#define LOAD(hint, v, from) asm volatile("ld.global" hint ".u32 %0, [%1];" : "=r"(v[0]) : "l"(from))
typedef word vector;
#endif

// An array of none is not C++.
#define SOME(count) ((count) ? (count) : 1)

// Points that go round as in fma.cu. `points`: number after number, each of PERIOD threads, which repeat.
template <typename VALUE, VALUE (*FUSED)(VALUE, VALUE, VALUE), int PAIRS>
struct Chains {
    VALUE x[SOME(PAIRS)], y[SOME(PAIRS)];

    __device__ __forceinline__ const word* begin(const word* points, word lane) {
        const VALUE* start = (const VALUE*)points;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            x[p] = start[2 * p * PERIOD + lane];
            y[p] = start[(2 * p + 1) * PERIOD + lane];
        }
        return (const word*)(start + 2 * PAIRS * PERIOD);
    }

    __device__ __forceinline__ void go_round(VALUE ahead, VALUE back) {
#pragma unroll
        for (int p = 0; p < PAIRS; p++) x[p] = FUSED(ahead, y[p], x[p]);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) y[p] = FUSED(back, x[p], y[p]);
    }

    __device__ __forceinline__ const word* compare(const word* points, word lane, word& wrong) const {
        const VALUE* right = (const VALUE*)points;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            wrong += x[p] != right[2 * p * PERIOD + lane];
            wrong += y[p] != right[(2 * p + 1) * PERIOD + lane];
        }
        return (const word*)(right + 2 * PAIRS * PERIOD);
    }
};

// Word i of what is loaded: it rises with i, and only its upper bits differ.
__device__ __forceinline__ word word_of(word start, word i) { return (start + RISE * i) & MASK; }

__device__ __forceinline__ void judge(const word* v, word start, word place, word& wrong, word& first) {
    const word begins = start + RISE * WIDTH * place;
    word off = 0;
#pragma unroll
    for (int c = 0; c < WIDTH; c++) off |= v[c] ^ ((begins + RISE * c) & MASK);
    if (off) {
        wrong++;
        first = place < first ? place : first;
    }
}

// Fills a buffer of so many words that is loaded from.
extern "C" __global__ void fill_words(word* words, unsigned long long count, word start) {
    const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        words[i] = word_of(start, (word)i);
}

// `together` blocks are meant to run at once: they read a window of the far and of the near words at a time, one vector
// each thread, and then the next one. A later wave of blocks begins where the one before ends, the first one at far_from
// and near_from. `kept`: each thread adds to vectors of its own, `each` of them in turn.
// The place of a wrong one is its vector's, or the thread's where a chain is wrong.
extern "C" __launch_bounds__(BOUNDS) __global__ void stress(
    const word* __restrict__ points, const word* __restrict__ expected, const word* far, const word* near, word* kept,
    unsigned long long* faults, word steps, word together, word far_windows, word far_from, word near_windows,
    word near_from, word each, word start, word plus, word factor) {
    extern __shared__ uint4 memory[];
    word* const slab = (word*)memory;
    const word lane = threadIdx.x % PERIOD, thread = blockIdx.x * blockDim.x + threadIdx.x;
    const word window = together * blockDim.x, wave = blockIdx.x / together, row = window / STRIDE;
    const word slot = thread - wave * window, spread = slot % row * STRIDE + slot / row;
    const word far_end = far_windows * window, near_end = near_windows * window;
    word far_at = spread + (far_from + wave * steps * FAR) % far_windows * window;
    word near_at = spread + (near_from + wave * steps * NEAR) % near_windows * window;
    word slab_at = threadIdx.x * BANK, keep = 0, wrong = 0, first = 0xffffffffu;
    Chains<double, fused_fp64, FP64> fp64;
    Chains<float, fused_fp32, FP32> fp32;
    Chains<word, fused_fp16, FP16> fp16;
    Chains<word, fused_bf16, BF16> bf16;
    Chains<word, fused_int32, INT32> int32;
    const word* next = fp64.begin(points, lane);
    int32.begin(bf16.begin(fp16.begin(fp32.begin(next, lane), lane), lane), lane);
    if (SHARED) {
        for (word i = threadIdx.x; i < SLAB * WIDTH; i += blockDim.x) slab[i] = word_of(start, i);
        __syncthreads();
    }
    for (word step = 0; step < steps; step++) {
        word far_v[SOME(FAR)][WIDTH], near_v[SOME(NEAR)][WIDTH], slab_v[SOME(SHARED)][WIDTH], keep_v[SOME(STORES)][WIDTH];
        word far_place[SOME(FAR)], near_place[SOME(NEAR)], slab_place[SOME(SHARED)], keep_place[SOME(STORES)];
        asm volatile("" ::: "memory");  // what is loaded in a step is not what was loaded in the one before
#pragma unroll
        for (int j = 0; j < STORES; j++) {
            keep_place[j] = (keep * gridDim.x * blockDim.x + thread) * WIDTH;
            LOAD(".cg", keep_v[j], kept + keep_place[j]);
            keep = keep + 1 < each ? keep + 1 : 0;
        }
#pragma unroll
        for (int j = 0; j < FAR; j++) {
            far_place[j] = far_at;
            LOAD(CACHE, far_v[j], far + (unsigned long long)far_at * WIDTH);
            far_at += window;
            if (far_at >= far_end) far_at -= far_end;
        }
#pragma unroll
        for (int j = 0; j < NEAR; j++) {
            near_place[j] = near_at;
            LOAD(".cg", near_v[j], near + (unsigned long long)near_at * WIDTH);
            near_at += window;
            if (near_at >= near_end) near_at -= near_end;
        }
#pragma unroll
        for (int j = 0; j < SHARED; j++) {
            slab_place[j] = slab_at % SLAB;
            *(vector*)slab_v[j] = ((const vector*)slab)[slab_place[j]];
            slab_at += 33;
        }
#if UNROLL
#pragma unroll UNROLL
#endif
        for (int r = 0; r < ROUNDS; r++) {
            fp64.go_round(AHEAD_FP64, BACK_FP64);
            fp32.go_round(AHEAD_FP32, BACK_FP32);
            fp16.go_round(AHEAD_FP16, BACK_FP16);
            bf16.go_round(AHEAD_BF16, BACK_BF16);
            int32.go_round(AHEAD_INT32, BACK_INT32);
        }
#pragma unroll
        for (int j = 0; j < FAR; j++) judge(far_v[j], start, far_place[j], wrong, first);
#pragma unroll
        for (int j = 0; j < NEAR; j++) judge(near_v[j], start, near_place[j], wrong, first);
#pragma unroll
        for (int j = 0; j < SHARED; j++) judge(slab_v[j], start, slab_place[j], wrong, first);
#pragma unroll
        for (int j = 0; j < STORES; j++)
#pragma unroll
            for (int c = 0; c < WIDTH; c++)
                kept[keep_place[j] + c] = keep_v[j][c] + factor * word_at(plus, keep_place[j] + c);
        if (SLEEP) asm volatile("nanosleep.u32 %0;" ::"r"(SLEEP));
    }
    word off = 0;
    const word* right = fp64.compare(expected, lane, off);
    right = fp32.compare(right, lane, off);
    right = fp16.compare(right, lane, off);
    int32.compare(bf16.compare(right, lane, off), lane, off);
    if (off && thread < first) first = thread;
    const int pairs = FP64 + FP32 + FP16 + BF16 + INT32;
    report(faults, 2 * pairs + (unsigned long long)steps * (FAR + NEAR + SHARED), wrong + off,
           wrong + off ? first : ~0ull);
}
