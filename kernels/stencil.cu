// A sweep of a 27-point stencil over a periodic box: less than 2^32 points, x runs fastest, a thread does a column of DEPTH points.
#include "faults.cuh"

#define DEPTH 32

// sum + the nine points of a plane, weighted: the middle one, those beside it, those across from it.
__device__ __forceinline__ float add(float sum, const float* v, float middle, float beside, float across) {
#pragma unroll
    for (int i = 0; i < 9; i++) sum = fused_fp32(i == 4 ? middle : i % 2 ? beside : across, v[i], sum);
    return sum;
}

// out = the stencil over in, plus a source with which it is in + growth, exactly: all numbers are multiples of 1/128 of
// at most 24 bits. in(x, y, z) must be axes[x].x + axes[nx + y].x + rise * z + before; the stencil makes it less by the
// sum of axes[].y. Each point is compared where a thread reads it as the middle one: what the last sweep made of it.
extern "C" __global__ void sweep27(const float* __restrict__ in, float* __restrict__ out,
                                   const float2* __restrict__ axes, float centre, float face, float edge,
                                   float corner, float rise, float before, float growth, unsigned long long* faults) {
    const unsigned int nx = gridDim.x * blockDim.x, ny = gridDim.y * blockDim.y, nz = gridDim.z * DEPTH;
    const unsigned int x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int y = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned int z = blockIdx.z * DEPTH;
    const unsigned int xs[3] = {x ? x - 1 : nx - 1, x, x + 1 < nx ? x + 1 : 0};
    const unsigned int ys[3] = {y ? y - 1 : ny - 1, y, y + 1 < ny ? y + 1 : 0};
    unsigned int at[9];
#pragma unroll
    for (int i = 0; i < 9; i++) at[i] = ys[i / 3] * nx + xs[i % 3];
    const unsigned int plane = nx * ny;
    const float2 along_x = axes[x], along_y = axes[nx + y];
    const float base = along_x.x + along_y.x + before;
    const float source = along_x.y + along_y.y + growth;
    // Along z the box repeats, but the numbers do not: the plane before the first one is too high by all of their rise.
    const float step = rise * (float)nz * (face + 4.0f * edge + 4.0f * corner);
    float sum = 0.0f, next = 0.0f;  // of the plane before the one that is read, and of that one
    unsigned int wrong = 0, first = 0;
#pragma unroll 2
    for (unsigned int d = 0; d < DEPTH + 2; d++) {
        const unsigned int here = z + d == 0 ? nz - 1 : z + d - 1 < nz ? z + d - 1 : 0;
        float v[9];
#pragma unroll
        for (int i = 0; i < 9; i++) v[i] = in[plane * here + at[i]];
        if (d >= 2) out[plane * (z + d - 2) + at[4]] = add(sum, v, face, edge, corner);
        if (d > DEPTH) break;
        if (d > 0 && v[4] != base + rise * (float)here) {
            if (wrong == 0) first = here;
            wrong++;
        }
        sum = add(next, v, centre, face, edge);
        next = add(z + d == 0 ? source - step : z + d + 1 == nz ? source + step : source, v, face, edge, corner);
    }
    report(faults, DEPTH, wrong, wrong ? plane * first + at[4] : ~0ull);
}
