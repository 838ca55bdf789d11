// Independent chains of multiply-adds in registers. Defined by the launch: VALUE (double, float or word), FUSED
// (fused_fp64, fused_fp32, fused_fp16, fused_bf16 or fused_int32), PAIRS, and the factors AHEAD and BACK (h and -h).
//
// The factors are constants, in no register: a register file seems to deliver two 32-bit operands a cycle, an even and
// an odd register, so that a multiply-add of three is held up where it could start every cycle.
#include "intrinsics.cuh"

#define PERIOD 256
#define UNROLL 16

// Each pair is a point that goes round: x += h y, then y -= h x (Minsky's circle). The map preserves area, so the
// numbers neither settle, which would save power, nor grow.
// start and out: number after number, each of all threads; start is of PERIOD threads, which repeat.
// rounds: a multiple of UNROLL.
extern "C" __global__ void chains(const VALUE* __restrict__ start, VALUE* __restrict__ out, int rounds) {
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
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        out[2 * p * threads + thread] = x[p];
        out[(2 * p + 1) * threads + thread] = y[p];
    }
}
