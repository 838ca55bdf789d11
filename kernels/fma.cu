// Independent chains of multiply-adds in registers. Defined by the launch: VALUE (double, float or word), FUSED
// (fused_fp64, fused_fp32, fused_fp16 or fused_int32), PAIRS, and the factors AHEAD and BACK (h and -h).
//
// The factors are constants, in no register: a register file seems to deliver two 32-bit operands a cycle, an even and
// an odd register, so that a multiply-add of three is held up where it could start every cycle.
#include "faults.cuh"
#include "intrinsics.cuh"

#define PERIOD 256
#define UNROLL 16

// Each pair is a point that goes round: x += h y, then y -= h x (Minsky's circle). The map preserves area, so the
// numbers neither settle, which would save power, nor grow.
// start and expected, what comes out of it: number after number, each of PERIOD threads, which repeat.
// rounds: a multiple of UNROLL. A wrong number's place is its thread's among all, times 2 PAIRS, and its own there.
extern "C" __global__ void chains(const VALUE* __restrict__ start, const VALUE* __restrict__ expected,
                                  unsigned long long* faults, int rounds) {
    const unsigned int lane = threadIdx.x % PERIOD;
    VALUE x[PAIRS];
    VALUE y[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        x[p] = start[2 * p * PERIOD + lane];
        y[p] = start[(2 * p + 1) * PERIOD + lane];
    }
#pragma unroll 1
    for (int r = 0; r < rounds; r += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int p = 0; p < PAIRS; p++) x[p] = FUSED(AHEAD, y[p], x[p]);
#pragma unroll
            for (int p = 0; p < PAIRS; p++) y[p] = FUSED(BACK, x[p], y[p]);
        }
    }
    unsigned int wrong = 0;  // a bit for each number
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        if (y[p] != expected[(2 * p + 1) * PERIOD + lane]) wrong |= 2u << 2 * p;
        if (x[p] != expected[2 * p * PERIOD + lane]) wrong |= 1u << 2 * p;
    }
    const unsigned long long thread = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    report(faults, 2 * PAIRS, __popc(wrong), wrong ? thread * (2 * PAIRS) + __ffs(wrong) - 1 : ~0ull);
}
