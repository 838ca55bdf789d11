// Copy and triad of STREAM (McCalpin) on 32-bit words, modulo 2^32, so that nothing is rounded and an error in any word stays
// in it however often these follow each other. 16 bytes a load, UNROLL independent ones before the first store.
// A block moves a tile: blockDim.x * UNROLL vectors.
typedef unsigned int word;

#define UNROLL 4

__device__ __forceinline__ size_t first_of(unsigned int tile) {
    return (size_t)tile * blockDim.x * UNROLL + threadIdx.x;
}

// out = a, moved down by one tile, the first tile behind the last.
extern "C" __global__ void stream_copy(const uint4* __restrict__ a, uint4* __restrict__ out) {
    const size_t from = first_of(blockIdx.x + 1 < gridDim.x ? blockIdx.x + 1 : 0);
    const size_t to = first_of(blockIdx.x);
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) v[u] = a[from + u * blockDim.x];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) out[to + u * blockDim.x] = v[u];
}

// out = a + factor b.
extern "C" __global__ void stream_triad(const uint4* __restrict__ a, const uint4* __restrict__ b,
                                        uint4* __restrict__ out, word factor) {
    const size_t first = first_of(blockIdx.x);
    uint4 v[UNROLL];
    uint4 w[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u] = a[first + u * blockDim.x];
        w[u] = b[first + u * blockDim.x];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u].x += factor * w[u].x;
        v[u].y += factor * w[u].y;
        v[u].z += factor * w[u].z;
        v[u].w += factor * w[u].w;
        out[first + u * blockDim.x] = v[u];
    }
}
