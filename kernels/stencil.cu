// One sweep of a 27-point stencil over a periodic box: x runs fastest, one thread a point.
#include "intrinsics.cuh"

extern "C" __global__ void sweep27(const float* __restrict__ in, float* __restrict__ out, float centre, float face,
                                   float edge, float corner) {
    const unsigned int nx = gridDim.x * blockDim.x;
    const unsigned int ny = gridDim.y * blockDim.y;
    const unsigned int nz = gridDim.z;
    const unsigned int x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int y = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned int z = blockIdx.z;
    const unsigned int xs[3] = {x ? x - 1 : nx - 1, x, x + 1 < nx ? x + 1 : 0};
    const unsigned int ys[3] = {y ? y - 1 : ny - 1, y, y + 1 < ny ? y + 1 : 0};
    const unsigned int zs[3] = {z ? z - 1 : nz - 1, z, z + 1 < nz ? z + 1 : 0};
    const float weights[4] = {centre, face, edge, corner};
    float sum = centre * in[((size_t)z * ny + y) * nx + x];
#pragma unroll
    for (int k = 0; k < 3; k++) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const float* line = in + ((size_t)zs[k] * ny + ys[j]) * nx;
#pragma unroll
            for (int i = 0; i < 3; i++) {
                const int away = (k != 1) + (j != 1) + (i != 1);
                if (away) sum = fused_fp32(weights[away], line[xs[i]], sum);
            }
        }
    }
    out[((size_t)z * ny + y) * nx + x] = sum;
}
