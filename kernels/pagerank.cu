// PageRank by pulling: each vertex adds up what its predecessors pass on. One thread a vertex, as the graph comes.
// share[v]: rank of v divided by its successors; 0 where it has none (what such a vertex holds is not passed on).
#include "faults.cuh"

extern "C" __global__ void begin(const float* __restrict__ inverse, float* __restrict__ share, float rank,
                                 unsigned int vertices) {
    const unsigned int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v < vertices) share[v] = rank * inverse[v];
}

// Additions in the order of the edges, and one multiply-add: the same on every GPU, bit for bit.
__device__ __forceinline__ float pulled(const unsigned int* row, const unsigned int* from, const float* share,
                                        float base, float damping, unsigned int v) {
    float sum = 0.0f;
    const unsigned int end = row[v + 1];
    for (unsigned int e = row[v]; e < end; e++) sum += share[from[e]];
    return fused_fp32(damping, sum, base);
}

extern "C" __global__ void spread(const unsigned int* __restrict__ row, const unsigned int* __restrict__ from,
                                  const float* __restrict__ inverse, const float* __restrict__ share,
                                  float* __restrict__ next, float base, float damping, unsigned int vertices) {
    const unsigned int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v < vertices) next[v] = pulled(row, from, share, base, damping, v) * inverse[v];
}

// The last iteration: the ranks are compared with sign * expected, and not written.
extern "C" __global__ void finish(const unsigned int* __restrict__ row, const unsigned int* __restrict__ from,
                                  const float* __restrict__ share, const float* __restrict__ expected, float sign,
                                  float base, float damping, unsigned int vertices, unsigned long long* faults) {
    const unsigned int v = blockIdx.x * blockDim.x + threadIdx.x;
    const bool inside = v < vertices;
    const bool wrong = inside && pulled(row, from, share, base, damping, v) != sign * expected[v];
    report(faults, inside, wrong, wrong ? v : ~0ull);
}
