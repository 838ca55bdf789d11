// PageRank by pulling: each vertex adds up what its predecessors pass on. One thread a vertex, as the graph comes.
// share[v]: rank of v divided by its successors; 0 where it has none (what such a vertex holds is not passed on).

extern "C" __global__ void begin(const float* __restrict__ inverse, float* __restrict__ share, float rank,
                                 unsigned int vertices) {
    const unsigned int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v < vertices) share[v] = rank * inverse[v];
}

__device__ __forceinline__ float pulled(const unsigned int* row, const unsigned int* from, const float* share,
                                        float base, float damping, unsigned int v) {
    float sum = 0.0f;
    const unsigned int end = row[v + 1];
    for (unsigned int e = row[v]; e < end; e++) sum += share[from[e]];
    return fmaf(damping, sum, base);
}

extern "C" __global__ void spread(const unsigned int* __restrict__ row, const unsigned int* __restrict__ from,
                                  const float* __restrict__ inverse, const float* __restrict__ share,
                                  float* __restrict__ next, float base, float damping, unsigned int vertices) {
    const unsigned int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v < vertices) next[v] = pulled(row, from, share, base, damping, v) * inverse[v];
}

extern "C" __global__ void finish(const unsigned int* __restrict__ row, const unsigned int* __restrict__ from,
                                  const float* __restrict__ share, float* __restrict__ rank, float base,
                                  float damping, unsigned int vertices) {
    const unsigned int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v < vertices) rank[v] = pulled(row, from, share, base, damping, v);
}
